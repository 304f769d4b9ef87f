"""Small graphs and a clock that only moves when asked."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from state import Need, TaskDef, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from state import Store
    from state.model import LoadReport


@dataclass(slots=True)
class Clock:
    """One second later at each reading."""

    now: datetime = field(default=datetime(2026, 3, 1, 12, 0, tzinfo=UTC))

    def __call__(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now


def task_def(
    name: str,
    needs: Iterable[str] = (),
    *,
    position: int = 0,
    kind: TaskKind = TaskKind.ONCE,
    version: str = "1",
    phase: str = "main",
    title: str = "",
) -> TaskDef:
    """`needs` are names; `any:name` makes it a need that only wants an end."""
    edges = tuple(
        Need(task=need.removeprefix("any:"), condition="any" if need.startswith("any:") else "ok")
        for need in needs
    )
    return TaskDef(
        id=name,
        title=title or f"Do {name}",
        phase=phase,
        step="shell",
        kind=kind,
        role=None if kind is TaskKind.MANUAL else "box",
        needs=edges,
        definition={"argv": ["true", name], "version": version},
        definition_hash=f"{name}-{version}",
        position=position,
    )


def graph(text: str, **versions: str) -> list[TaskDef]:
    """`a; b: a; s(service): a; c: b any:s` in the order of the text."""
    defs = []
    for position, part in enumerate(text.split(";")):
        head, _, needs = part.partition(":")
        name, _, kind = head.strip().rstrip(")").partition("(")
        defs.append(
            task_def(
                name,
                needs.split(),
                position=position,
                kind=TaskKind(kind or "once"),
                version=versions.get(name, "1"),
            )
        )
    return defs


def load(store: Store, defs: Iterable[TaskDef], *, digest: str = "d1") -> LoadReport:
    with store.write() as tx:
        return tx.load_runbook(
            path="runbook.yaml",
            text=f"# {digest}",
            digest=digest,
            name="drafter",
            title="Train a drafter",
            goal="A drafter that is faster than lookup.",
            tasks=list(defs),
        )


def state_of(store: Store) -> dict[str, str]:
    return {task.id: task.state.value for task in store.snapshot().tasks}
