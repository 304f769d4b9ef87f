"""The tables, as numbered migrations. Never edit one that was released: add the next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from state.model import AttemptState, FailureClass, TaskKind, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

    from sqlite_utils import Database

MIGRATION_SET = "state"


def one_of(column: str, values: type[StrEnum]) -> str:
    return f"CHECK ({column} IN ({', '.join(repr(value.value) for value in values)}))"


def m0001_initial(db: Database) -> None:
    """Everything of the first release."""
    for statement in INITIAL:
        db.execute(statement)
    db.table("event").create_index(["task", "seq"])
    db.table("attempt").create_index(["task", "number"], unique=True)
    db.table("check_run").create_index(["task", "purpose", "name"])
    db.table("note").create_index(["task"])
    db.table("artifact").create_index(["task"])


INITIAL = (
    """CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)""",
    # Every runbook file that was ever loaded, whole: what was approved can be shown later.
    """CREATE TABLE runbook_rev (
        digest TEXT PRIMARY KEY, path TEXT NOT NULL, text TEXT NOT NULL,
        loaded_at TEXT NOT NULL, actor TEXT NOT NULL)""",
    # One row a task; its past is in the events.
    f"""CREATE TABLE task (
        id TEXT PRIMARY KEY, position INTEGER NOT NULL, title TEXT NOT NULL, phase TEXT NOT NULL,
        step TEXT NOT NULL, kind TEXT NOT NULL {one_of("kind", TaskKind)}, role TEXT,
        needs TEXT NOT NULL CHECK (json_valid(needs)),
        definition TEXT NOT NULL CHECK (json_valid(definition)),
        definition_hash TEXT NOT NULL,
        resources TEXT NOT NULL CHECK (json_valid(resources)),
        state TEXT NOT NULL {one_of("state", TaskState)},
        reason TEXT NOT NULL, out TEXT NOT NULL CHECK (json_valid(out)),
        since TEXT NOT NULL, removed INTEGER NOT NULL CHECK (removed IN (0, 1)),
        began_hash TEXT)""",
    # One row an execution.
    f"""CREATE TABLE attempt (
        id TEXT PRIMARY KEY, task TEXT NOT NULL REFERENCES task(id),
        number INTEGER NOT NULL, generation INTEGER NOT NULL,
        host TEXT NOT NULL, epoch TEXT,
        state TEXT NOT NULL {one_of("state", AttemptState)},
        cls TEXT {one_of("cls", FailureClass)}, exit_code INTEGER, signal INTEGER,
        created_at TEXT NOT NULL, started_at TEXT, ended_at TEXT,
        superseded_by TEXT REFERENCES attempt(id), definition_hash TEXT NOT NULL,
        detail TEXT NOT NULL CHECK (json_valid(detail)),
        evidence TEXT NOT NULL CHECK (json_valid(evidence)))""",
    """CREATE TABLE check_run (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, task TEXT NOT NULL REFERENCES task(id),
        attempt TEXT REFERENCES attempt(id),
        purpose TEXT NOT NULL CHECK (purpose IN ('done', 'ready', 'gate')), name TEXT NOT NULL,
        spec TEXT NOT NULL CHECK (json_valid(spec)),
        verdict TEXT NOT NULL CHECK (verdict IN ('pass', 'fail', 'unknown')),
        evidence TEXT NOT NULL CHECK (json_valid(evidence)), at TEXT NOT NULL, epoch TEXT)""",
    """CREATE TABLE host (
        role TEXT PRIMARY KEY, kind TEXT NOT NULL CHECK (kind IN ('local', 'ssh')),
        address TEXT NOT NULL, user TEXT NOT NULL, port INTEGER NOT NULL, root TEXT NOT NULL,
        work TEXT NOT NULL, host_key TEXT, epoch TEXT,
        facts TEXT NOT NULL CHECK (json_valid(facts)), seen_at TEXT, unreachable_since TEXT)""",
    """CREATE TABLE note (
        id TEXT PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, task TEXT REFERENCES task(id),
        text TEXT NOT NULL, decision INTEGER NOT NULL CHECK (decision IN (0, 1)))""",
    """CREATE TABLE artifact (
        id TEXT PRIMARY KEY, task TEXT NOT NULL REFERENCES task(id),
        attempt TEXT REFERENCES attempt(id), uri TEXT NOT NULL, size INTEGER NOT NULL,
        sha256 TEXT NOT NULL, at TEXT NOT NULL)""",
    # The token only grows; the row stays when the lease is released.
    """CREATE TABLE lease (
        resource TEXT PRIMARY KEY, holder TEXT NOT NULL, token INTEGER NOT NULL,
        acquired_at TEXT NOT NULL, released_at TEXT)""",
    # The revision is the largest seq. Each row carries the hash of the one before it.
    """CREATE TABLE event (
        seq INTEGER PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL, kind TEXT NOT NULL,
        subject TEXT NOT NULL, task TEXT, payload TEXT NOT NULL CHECK (json_valid(payload)),
        prev TEXT NOT NULL, hash TEXT NOT NULL)""",
    """CREATE TRIGGER event_is_final BEFORE UPDATE ON event
        BEGIN SELECT RAISE(ABORT, 'events are never changed'); END""",
    """CREATE TRIGGER event_is_kept BEFORE DELETE ON event
        BEGIN SELECT RAISE(ABORT, 'events are never deleted'); END""",
    """CREATE TRIGGER event_is_next BEFORE INSERT ON event
        WHEN NEW.seq <> (SELECT coalesce(max(seq), 0) + 1 FROM event)
          OR NEW.prev <> coalesce((SELECT hash FROM event ORDER BY seq DESC LIMIT 1), '')
        BEGIN SELECT RAISE(ABORT, 'an event must follow the last one'); END""",
    """CREATE TRIGGER lease_token_grows BEFORE UPDATE ON lease WHEN NEW.token < OLD.token
        BEGIN SELECT RAISE(ABORT, 'a fence token never shrinks'); END""",
)


def m0002_sharing(db: Database) -> None:
    """Two operators: who claimed what, what to re-read, which secrets there are (never values)."""
    for statement in SHARING:
        db.execute(statement)


SHARING = (
    # The token only grows; the row stays when the claim is given back.
    """CREATE TABLE claim (
        subject TEXT PRIMARY KEY, holder TEXT NOT NULL, token INTEGER NOT NULL,
        at TEXT NOT NULL, for_s REAL NOT NULL, reason TEXT NOT NULL, released_at TEXT)""",
    """CREATE TRIGGER claim_token_grows BEFORE UPDATE ON claim WHEN NEW.token < OLD.token
        BEGIN SELECT RAISE(ABORT, 'a fence token never shrinks'); END""",
    """CREATE TABLE document (
        path TEXT PRIMARY KEY, title TEXT NOT NULL, sha256 TEXT NOT NULL, size INTEGER NOT NULL,
        at TEXT NOT NULL, actor TEXT NOT NULL)""",
    """CREATE TABLE secret (
        name TEXT PRIMARY KEY, source TEXT NOT NULL CHECK (json_valid(source)),
        fingerprint TEXT, seen_at TEXT)""",
)


MIGRATIONS: dict[str, Callable[[Database], None]] = {
    "0001_initial": m0001_initial,
    "0002_sharing": m0002_sharing,
}
