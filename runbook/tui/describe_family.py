"""A family of tasks, described: how many are where, then each. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import board_model as model
from runbook.tui import format as fmt

if TYPE_CHECKING:
    from datetime import datetime

    from runbook.families import Family
    from runbook.tui.describe import Looks
    from runbook.views import View

MOST = 200


def describe_family(family: Family, view: View, looks: Looks, *, now: datetime) -> Text:
    """One line for each member; what most needs to be seen stands above."""
    inks = looks.inks
    lines = [Text(family.said, style=inks.text), Text()]
    for task in family.tasks[:MOST]:
        row = model.task_row(view, task, now)
        line = Text.assemble(
            (f"{looks.glyphs.state(row.state)} ", inks.state(row.state)),
            (f"{fmt.clean(task.id)}  ", inks.text),
            (row.word, inks.state(row.state)),
            (f"  {row.aside}" if row.aside else "", inks.muted),
        )
        if task.reason and row.state in model.TROUBLE:
            line.append(f"  {fmt.clean(task.reason, most=120)}", inks.muted)
        lines.append(line)
    if len(family.tasks) > MOST:
        lines.append(Text(f"and {len(family.tasks) - MOST} more", style=inks.muted))
    lines += [Text(), Text("space shows each of them in the list", style=inks.faint)]
    return Text("\n").join(lines)
