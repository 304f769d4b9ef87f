"""Rows to records, and the whole state as one `Snapshot`. A handful of queries, linear time."""

from __future__ import annotations

import gc
import json
from contextlib import contextmanager
from dataclasses import dataclass
from operator import is_not
from typing import TYPE_CHECKING, Generic, TypeVar

from state import journal
from state.connection import reading
from state.model import (
    Approval,
    Artifact,
    Attempt,
    AttemptState,
    CheckRun,
    Claim,
    Document,
    FailureClass,
    HostBinding,
    HostEpoch,
    Lease,
    Meta,
    Need,
    Note,
    Rental,
    SecretRef,
    Snapshot,
    Task,
    TaskKind,
    TaskState,
)

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator

Record = TypeVar("Record")
OWN_META = ("workspace_id", "name", "title", "goal", "runbook_hash", "runbook_path")

# Values that repeat a thousand times are looked up, not constructed: enums by dictionary, and
# the empty object without the parser.
KINDS = {kind.value: kind for kind in TaskKind}
TASK_STATES = {state.value: state for state in TaskState}
ATTEMPT_STATES = {state.value: state for state in AttemptState}
CLASSES = {cls.value: cls for cls in FailureClass}


def task_from(row: sqlite3.Row) -> Task:
    needs = row["needs"]
    resources = row["resources"]
    out = row["out"]
    return Task(
        id=row["id"],
        title=row["title"],
        phase=row["phase"],
        step=row["step"],
        kind=KINDS[row["kind"]],
        role=row["role"],
        needs=needs_from(needs),
        definition=json.loads(row["definition"]),
        definition_hash=row["definition_hash"],
        position=row["position"],
        resources=() if resources == "[]" else tuple(json.loads(resources)),
        state=TASK_STATES[row["state"]],
        reason=row["reason"],
        out={} if out == "{}" else json.loads(out),
        since=row["since"],
        removed=bool(row["removed"]),
        began_hash=row["began_hash"],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """As much of a task as readiness looks at: every write reads all of them."""

    id: str
    position: int
    kind: TaskKind
    needs: tuple[Need, ...]
    state: TaskState
    reason: str
    removed: bool
    began_hash: str | None


NODES = "SELECT id, position, kind, needs, state, reason, removed, began_hash FROM task"


def read_nodes(conn: sqlite3.Connection) -> list[GraphNode]:
    """The whole graph."""
    return _nodes(conn.execute(f"{NODES} ORDER BY position, id"))


def read_near(conn: sqlite3.Connection, moved: Iterable[str]) -> tuple[set[str], list[GraphNode]]:
    """Those that need one of the moved tasks, and all that is needed to judge them."""
    names = json.dumps(sorted(moved))
    near = {
        row[0]
        for row in conn.execute(
            "SELECT value FROM json_each(:names) UNION SELECT task FROM dependency"
            " WHERE needs IN (SELECT value FROM json_each(:names))",
            {"names": names},
        )
    }
    rows = conn.execute(
        f"{NODES} WHERE id IN (SELECT value FROM json_each(:near) UNION SELECT needs"  # noqa: S608
        " FROM dependency WHERE task IN (SELECT value FROM json_each(:near)))"
        " ORDER BY position, id",
        {"near": json.dumps(sorted(near))},
    )
    return near, _nodes(rows)


def _nodes(rows: Iterable[sqlite3.Row]) -> list[GraphNode]:
    return [
        GraphNode(
            id=row[0],
            position=row[1],
            kind=KINDS[row[2]],
            needs=needs_from(row[3]),
            state=TASK_STATES[row[4]],
            reason=row[5],
            removed=bool(row[6]),
            began_hash=row[7],
        )
        for row in rows
    ]


def needs_from(text: str) -> tuple[Need, ...]:
    if text == "[]":
        return ()
    return tuple(Need(task=need[0], condition=need[1]) for need in json.loads(text))


def attempt_from(row: sqlite3.Row) -> Attempt:
    return Attempt(
        id=row["id"],
        task=row["task"],
        number=row["number"],
        generation=row["generation"],
        host=row["host"],
        epoch=row["epoch"],
        state=ATTEMPT_STATES[row["state"]],
        cls=None if row["cls"] is None else CLASSES[row["cls"]],
        exit_code=row["exit_code"],
        signal=row["signal"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        superseded_by=row["superseded_by"],
        definition_hash=row["definition_hash"],
        detail=json.loads(row["detail"]),
        evidence=json.loads(row["evidence"]),
    )


def check_from(row: sqlite3.Row) -> CheckRun:
    return CheckRun(
        id=row["id"],
        task=row["task"],
        attempt=row["attempt"],
        purpose=row["purpose"],
        name=row["name"],
        spec=json.loads(row["spec"]),
        verdict=row["verdict"],
        evidence=json.loads(row["evidence"]),
        at=row["at"],
        epoch=row["epoch"],
    )


def host_from(row: sqlite3.Row) -> HostBinding:
    fields = dict(row)
    fields["facts"] = json.loads(fields["facts"])
    return HostBinding(**fields)


def epoch_from(row: sqlite3.Row) -> HostEpoch:
    return HostEpoch(
        role=row["role"], epoch=row["epoch"], identity=json.loads(row["identity"]), at=row["at"]
    )


def note_from(row: sqlite3.Row) -> Note:
    fields = dict(row)
    fields["decision"] = bool(fields["decision"])
    return Note(**fields)


def secret_from(row: sqlite3.Row) -> SecretRef:
    fields = dict(row)
    fields["source"] = json.loads(fields["source"])
    return SecretRef(**fields)


def meta_from(values: dict[str, str], schema_version: int) -> Meta:
    own = {key: values.get(key, "") for key in OWN_META}
    extra = {key: value for key, value in sorted(values.items()) if key not in own}
    return Meta(**own, schema_version=schema_version, extra=extra)


class Memo(Generic[Record]):
    """Records made before, by id: a row that reads the same gives the same record.

    Of ten thousand tasks a commit changes a few; making the others anew took nine tenths of the
    time, in a thread that the screen has to share the interpreter with.
    """

    def __init__(self, make: Callable[[sqlite3.Row], Record]) -> None:
        self._make = make
        self._known: dict[str, tuple[tuple[object, ...], Record]] = {}
        self._all: tuple[Record, ...] = ()

    def records(self, rows: Iterable[sqlite3.Row]) -> tuple[Record, ...]:
        """The records of these rows; the very same tuple as before when nothing changed."""
        fresh: dict[str, tuple[tuple[object, ...], Record]] = {}
        for row in rows:
            values = tuple(row)
            known = self._known.get(row["id"])
            if known is None or known[0] != values:
                known = (values, self._make(row))
            fresh[row["id"]] = known
        self._known = fresh
        found = tuple(record for _, record in fresh.values())
        if len(found) != len(self._all) or any(map(is_not, found, self._all)):
            self._all = found
        return self._all


class Known:
    """What one reader made of the tables that grow. Not shared between threads."""

    def __init__(self) -> None:
        self.tasks = Memo(task_from)
        self.attempts = Memo(attempt_from)
        self.checks = Memo(check_from)


@contextmanager
def uncollected() -> Iterator[None]:
    """Ten thousand new records are no garbage: looking through them costs half as much again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def read_snapshot(conn: sqlite3.Connection, known: Known | None = None) -> Snapshot:
    """Everything, as of one revision. Of what is `known`, only changed rows become new records."""
    known = known or Known()
    with reading(conn), uncollected():
        values = {row[0]: row[1] for row in conn.execute("SELECT key, value FROM meta")}
        version = conn.execute("SELECT count(*) FROM _sqlite_migrations").fetchone()[0]
        return Snapshot(
            revision=journal.head(conn)[0],
            meta=meta_from(values, version),
            tasks=known.tasks.records(conn.execute("SELECT * FROM task ORDER BY position, id")),
            attempts=known.attempts.records(conn.execute("SELECT * FROM attempt ORDER BY rowid")),
            checks=known.checks.records(conn.execute(LATEST_CHECKS)),
            hosts=tuple(map(host_from, conn.execute("SELECT * FROM host ORDER BY role"))),
            notes=tuple(map(note_from, conn.execute("SELECT * FROM note ORDER BY rowid"))),
            artifacts=tuple(
                Artifact(**dict(row))
                for row in conn.execute("SELECT * FROM artifact ORDER BY rowid")
            ),
            leases=tuple(
                Lease(**dict(row))
                for row in conn.execute(
                    "SELECT resource, holder, token, acquired_at FROM lease"
                    " WHERE released_at IS NULL ORDER BY resource"
                )
            ),
            claims=tuple(
                Claim(**dict(row))
                for row in conn.execute(
                    "SELECT subject, holder, token, at, for_s, reason FROM claim"
                    " WHERE released_at IS NULL ORDER BY subject"
                )
            ),
            documents=tuple(
                Document(**dict(row))
                for row in conn.execute("SELECT * FROM document ORDER BY path")
            ),
            secrets=tuple(map(secret_from, conn.execute("SELECT * FROM secret ORDER BY name"))),
            approvals=tuple(
                Approval(**dict(row))
                for row in conn.execute("SELECT * FROM approval ORDER BY rowid")
            ),
            rentals=tuple(
                Rental(**dict(row)) for row in conn.execute("SELECT * FROM rental ORDER BY rowid")
            ),
            epochs=tuple(map(epoch_from, conn.execute("SELECT * FROM host_epoch ORDER BY seq"))),
        )


LATEST_CHECKS = (
    "SELECT * FROM check_run"
    " WHERE seq IN (SELECT max(seq) FROM check_run GROUP BY task, purpose, name) ORDER BY seq"
)
