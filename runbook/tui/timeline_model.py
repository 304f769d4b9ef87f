"""Events as lines and as pages. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from runbook.history import moved_to, said
from runbook.tui import format as fmt

if TYPE_CHECKING:
    from datetime import datetime

    from rich.style import Style

    from runbook.tui.describe import Looks
    from state.model import Event


def row_of(event: Event, looks: Looks) -> tuple[tuple[str, Style], ...]:
    """One line: when, what, to which, by whom."""
    inks = looks.inks
    at = fmt.parse_time(event.at)
    to = fmt.clean(moved_to(event))
    text = fmt.clean(said(event))
    word, rest = to or _short(event.kind), text.partition(", ")[2] if to else text
    if event.kind == "attempt.moved":
        rest = rest.replace("_", " ")
    if rest.split(" ")[0] == word:  # `stopped by anna` says both
        rest = rest.removeprefix(word).lstrip()
    about = event.task or event.subject  # nobody knows attempts and checks by their ids
    return (
        (f"{at:%d %b %H:%M:%S} " if at is not None else "", inks.muted),
        (f"{looks.glyphs.state(to)} " if to else "  ", inks.state(to)),
        (f"{fmt.clean(about)} ", inks.text),
        (f"{word} ", inks.state(to) if to else inks.muted),
        (rest, inks.muted),
    )


def _short(kind: str) -> str:
    """`attempt` for `attempt.moved`: what it moved to stands beside it."""
    name = fmt.clean(kind).removesuffix(".moved").removesuffix(".recorded")
    return name.removeprefix("task.").replace(".", " ")


def tell(event: Event, looks: Looks, *, now: datetime) -> Text:
    """Everything about one."""
    inks = looks.inks
    out = Text()
    age = fmt.between(event.at, now)
    rows: list[tuple[str, Any]] = [
        ("what", event.kind), ("about", event.subject), ("task", event.task), ("by", event.actor),
        ("at", f"{event.at}{f', {fmt.duration(age)} ago' if age is not None else ''}"),
    ]  # fmt: skip
    for name, value in (*rows, *event.payload.items()):
        if value not in (None, "", [], {}):
            out.append(f"{fmt.clean(name)}  ", inks.muted).append(fmt.value(value), inks.text)
            out.append("\n")
    return out
