"""The runbook: a terminal UI, a CLI and an MCP server over one service layer."""

from __future__ import annotations

__version__ = "0.1.0"
