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


def m0003_machines_and_needs(db: Database) -> None:
    """Needs as rows, what machines cost, each boot of them, and people's approvals."""
    for statement in MACHINES:
        db.execute(statement)
    db.table("dependency").create_index(["needs"])


MACHINES = (
    # Who waits for a task is one look-up: a move touches its followers, not the whole graph.
    """CREATE TABLE dependency (
        task TEXT NOT NULL REFERENCES task(id), needs TEXT NOT NULL,
        condition TEXT NOT NULL CHECK (condition IN ('ok', 'any')),
        PRIMARY KEY (task, needs, condition)) WITHOUT ROWID""",
    """INSERT OR IGNORE INTO dependency (task, needs, condition)
        SELECT task.id, json_extract(need.value, '$[0]'), json_extract(need.value, '$[1]')
        FROM task, json_each(task.needs) AS need""",
    "ALTER TABLE host ADD COLUMN usd_per_hour REAL CHECK (usd_per_hour >= 0)",
    "ALTER TABLE host ADD COLUMN ends_at TEXT",
    """CREATE TABLE host_epoch (
        seq INTEGER PRIMARY KEY, role TEXT NOT NULL, epoch TEXT NOT NULL,
        identity TEXT NOT NULL CHECK (json_valid(identity)), at TEXT NOT NULL)""",
    # The machine before the last one was paid for too.
    """CREATE TABLE rental (
        id TEXT PRIMARY KEY, role TEXT NOT NULL, machine TEXT NOT NULL, usd_per_hour REAL,
        since TEXT NOT NULL, until TEXT)""",
    """INSERT INTO host_epoch (role, epoch, identity, at)
        SELECT subject, json_extract(payload, '$.epoch'), '{}', at FROM event
        WHERE kind = 'host.seen' AND json_extract(payload, '$.epoch') IS NOT NULL ORDER BY seq""",
    """INSERT INTO rental (id, role, machine, since)
        SELECT 'first-' || role, role,
            iif(kind = 'local', 'local', user || '@' || address || ':' || port),
            (SELECT max(at) FROM event WHERE event.kind = 'host.bound' AND subject = role)
        FROM host""",
    """CREATE TABLE approval (
        id TEXT PRIMARY KEY, at TEXT NOT NULL, actor TEXT NOT NULL,
        task TEXT NOT NULL REFERENCES task(id),
        about TEXT NOT NULL CHECK (about IN ('gate', 'budget')), definition_hash TEXT NOT NULL,
        attempts INTEGER NOT NULL, reason TEXT NOT NULL)""",
    # They were kept as facts about the workspace: approved:TASK:HASH.
    """INSERT INTO approval (id, at, actor, task, about, definition_hash, attempts, reason)
        SELECT 'old-' || substr(meta.key, 10), event.at, event.actor, task.id, 'gate',
            task.definition_hash, 0, meta.value
        FROM meta JOIN task ON meta.key = 'approved:' || task.id || ':'
            || substr(task.definition_hash, 1, 16)
        JOIN event ON event.kind = 'meta.set' AND event.subject = meta.key
        WHERE event.seq = (SELECT max(seq) FROM event WHERE kind = 'meta.set'
            AND subject = meta.key)""",
)


def m0004_identity_file(db: Database) -> None:
    """Which key of the operator's lets us in on a machine."""
    db.execute("ALTER TABLE host ADD COLUMN identity_file TEXT NOT NULL DEFAULT ''")


MIGRATIONS: dict[str, Callable[[Database], None]] = {
    "0001_initial": m0001_initial,
    "0002_sharing": m0002_sharing,
    "0003_machines_and_needs": m0003_machines_and_needs,
    "0004_identity_file": m0004_identity_file,
}
