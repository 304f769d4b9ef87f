"""Which recorded events fit a filter, and what each came to in a few words. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.telling import told_move

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from state import Event, Snapshot

FIELDS = ("actor", "host", "task", "kind")
TELLING = ("verdict", "cls", "reason", "text", "name", "uri")


def matching(events: Iterable[Event], needle: str, snapshot: Snapshot) -> Iterator[Event]:
    """Those with all the words; `actor:anna` looks at one field alone (also host, task, kind)."""
    words = [word.partition(":") for word in needle.casefold().split()]
    for event in events:
        if all(_fits(event, name, sep, wanted, snapshot) for name, sep, wanted in words):
            yield event


def _fits(event: Event, name: str, sep: str, wanted: str, snapshot: Snapshot) -> bool:
    if sep and name in FIELDS:
        return wanted in _field(event, name, snapshot).casefold()
    text = f"{event.kind} {event.subject} {event.actor} {said(event)}".casefold()
    return name + sep + wanted in text


def _field(event: Event, name: str, snapshot: Snapshot) -> str:
    if name == "host":
        task = snapshot.by_id.get(event.task or "")
        role = event.payload.get("host") or event.payload.get("role")
        about = event.subject if event.kind.startswith("host.") else ""
        return f"{role or (task.role if task is not None else '') or ''} {about}"
    return str(event.task or "") if name == "task" else str(getattr(event, name))


def moved_to(event: Event) -> str:
    """The state that a task moved to, as people are told it; empty for all other events."""
    if event.kind != "task.moved":
        return ""
    return told_move(str(event.payload["to"]), str(event.payload.get("reason") or ""))


def said(event: Event) -> str:
    """What it came to."""
    payload = event.payload
    to = moved_to(event) or payload.get("to") or payload.get("state")
    parts = [to, *(payload.get(name) for name in TELLING)]
    return ", ".join(" ".join(str(part).split())[:200] for part in parts if part)
