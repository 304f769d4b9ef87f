"""The widgets of the terminal interface, one file each."""

from __future__ import annotations
