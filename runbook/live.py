"""The last observations, left in a file for other clients. Losing it loses nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from runbook.views import Live

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runbook.workspace import Workspace


def write_live(workspace: Workspace, live: Mapping[str, Live]) -> None:
    """Leaves what was just seen, by task."""
    rows = {
        task: {name: getattr(item, name) for name in Live.__dataclass_fields__}
        for task, item in live.items()
    }
    aside = workspace.live_file.with_suffix(".partial")
    aside.write_text(json.dumps(rows), encoding="utf-8")
    aside.replace(workspace.live_file)


def read_live(workspace: Workspace) -> dict[str, Live]:
    """What `write_live` left, or nothing."""
    try:
        rows: dict[str, Any] = json.loads(workspace.live_file.read_text(encoding="utf-8"))
        return {task: Live(**row) for task, row in rows.items()}
    except (FileNotFoundError, ValueError, TypeError):
        return {}
