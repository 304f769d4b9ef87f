"""DFlash drafters: data, online training, evaluation, export. Importing this loads nothing."""

from __future__ import annotations

__version__ = "0.1.0"
