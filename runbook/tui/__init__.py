"""The terminal interface. Only this package imports Textual; nothing else of runbook imports it."""

from __future__ import annotations
