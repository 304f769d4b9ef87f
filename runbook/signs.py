"""One sign for each state, one cell wide, the same in the command line and on the screen."""

from __future__ import annotations

SIGNS = {
    "draft": "○",
    "blocked": "○",
    "ready": "◌",
    "gated": "◆",
    "active": "◐",
    "starting": "◐",
    "verifying": "◑",
    "draining": "◑",
    "serving": "●",
    "done": "✓",
    "failed": "✗",
    "stopped": "⊘",
    "unhealthy": "!",
    "skipped": "–",
    "stale": "≠",
    "attention": "?",
}
