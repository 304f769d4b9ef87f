"""What each verb answers with `--json`: the one description, of which docs/json.md is made.

Nothing here runs with a verb; a test holds every answer against it. Keys are added freely. A key
that goes, or changes its meaning, makes a new `SCHEMA`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from remote import Shrunk
from remote.transfer import Report
from runbook.brief import Section
from runbook.cli.common import SCHEMA
from runbook.diff import Affected, Changed, FieldChange, Removed
from runbook.doctor import Finding
from runbook.drill import Step
from runbook.engine.reconcile import Seen
from runbook.errors import Exit
from runbook.plan import Problem
from runbook.reach import Dependants
from runbook.sharing.contents import Contents
from runbook.sharing.pull import Offer, Pulled
from runbook.sharing.push import Pushed
from runbook.views import Checkpoint, HeldClaim, Live, NextAction, RunResult, TaskRow
from state import model

KINDS: dict[str, type | tuple[type, ...]] = {
    "text": str,
    "number": (int, float),
    "truth": bool,
    "object": dict,
    "list": list,
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key of an answer."""

    name: str
    kind: str
    """A word of `KINDS`; with `?` it may be null, and it may be left out with `-`."""
    what: str
    record: type | None = None
    """What the object is, or what the list holds."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The `data` of one verb, or of one form of it."""

    verb: str
    form: str
    keys: tuple[Key, ...]


def _keys(*rows: tuple[Any, ...]) -> tuple[Key, ...]:
    return tuple(Key(*row) for row in rows)


MOVED = _keys(
    ("task", "text", "its id"),
    ("state", "text", "where it is now"),
    ("reason", "text", "why"),
)
TASKS = ("tasks", "list", "ids")
CLAIMS = ("claims", "list", "that hold", HeldClaim)
HOST = ("host", "object", "the binding", model.HostBinding)

ANSWERS: tuple[Answer, ...] = (
    Answer("init", "", _keys(("workspace", "text", "its folder"), ("tasks", "number", "how many"))),
    Answer(
        "validate",
        "",
        _keys(
            ("valid", "truth", "whether it can be loaded"),
            ("tasks", "list-", "ids, when valid"),
            ("problems", "list-", "when not", Problem),
        ),
    ),
    Answer(
        "plan",
        "",
        _keys(
            ("file", "text", "what was compared"),
            ("problems", "list-", "why it cannot be loaded; then nothing else", Problem),
            ("same", "truth-", "whether nothing would change"),
            ("head", "list-", "of the file", FieldChange),
            ("new", "list-", "ids"),
            ("changed", "list-", "defined differently", Changed),
            ("cosmetic", "list-", "changed without an effect", Changed),
            ("removed", "list-", "no longer in the file", Removed),
            ("reordered", "truth-", "whether tasks changed places"),
            ("stale", "list-", "done tasks that would turn stale"),
            ("affected", "list-", "tasks that need those", Affected),
        ),
    ),
    Answer("plan", "--cost", _keys(("cost", "object", "hours and money, by task and host"))),
    Answer("status", "", _keys(
        ("name", "text", "of the runbook"),
        ("title", "text", "of the runbook"),
        ("next", "object", "the next safe action", NextAction),
        ("engine", "text?", "who advances the graph right now"),
        ("edited", "truth", "runbook.yaml was edited and not taken over"),
        CLAIMS,
        ("tasks", "list", "in the order of the file", TaskRow),
        ("hosts", "list", "bindings", model.HostBinding),
    )),
    Answer("status", "TASK", _keys(
        ("task", "object", "with `needs` and `out`", TaskRow),
        ("definition", "object", "as it was loaded"),
        ("attempts", "list", "oldest first", model.Attempt),
        ("checks", "list", "the latest run of each", model.CheckRun),
    )),
    Answer("next", "", _keys(("next", "object", "what to do", NextAction), CLAIMS)),
    Answer("brief", "", _keys(
        ("title", "text", "of the runbook"),
        ("goal", "text", "of the runbook"),
        ("revision", "number", "that it was made from"),
        ("progress", "text", "counts by state"),
        ("next", "text", "the next safe action"),
        ("edited", "truth", "runbook.yaml was edited and not taken over"),
        ("about", "list", "lines on the task that was asked for"),
        ("sections", "list", "in reading order", Section),
        ("markdown", "text", "all of it as text"),
    )),
    Answer("logs", "", _keys(
        ("task", "text", "its id"),
        ("attempt", "text?", "whose output it is"),
        ("streams", "object", "`out`, `err` -> last lines, without control codes"),
        ("diagnosis", "object?", "what ended a server: `kind`, `cause`, `next`, `line`, `final`"),
        ("problem", "text", "why this copy may be older than the log on the host"),
        ("copied_at", "text?", "when the copy last grew; null when there is none"),
    )),
    Answer("results", "", _keys(
        ("tasks", "object", "id -> results and times"),
        ("artifacts", "list", "kept files", model.Artifact),
    )),
    Answer("events", "", _keys(("events", "list", "oldest first", model.Event))),
    Answer("progress", "", _keys(
        ("path", "text", "the file"),
        ("current", "truth", "whether it shows the newest revision"),
        ("changed", "truth", "whether it was written now"),
        ("edit", "text", "what somebody wrote into our part; it was kept as a note"),
        ("problem", "text", "why it could not be written"),
    )),
    Answer("run", "", _keys(("result", "object", "how it ended", RunResult))),
    Answer("watch", "", _keys(("result", "object", "how it ended", RunResult))),
    Answer("wait", "", _keys(
        ("task", "text?", "that was waited for"),
        ("state", "text", "of the task"),
        ("failed", "list", "ids of tasks that failed or need attention"),
    )),
    Answer("stop", "", MOVED),
    Answer("restart", "", _keys(("result", "object", "how it ended", RunResult))),
    Answer("retry", "", MOVED),
    Answer("retry", "--all-failed", _keys(TASKS)),
    Answer("supersede", "", MOVED),
    Answer("skip", "", MOVED),
    Answer(
        "verify",
        "",
        _keys(
            ("tasks", "object", "of the judged: id -> check, verdict and evidence of each"),
            ("left", "object", "named and not judged: id -> why"),
            ("unanswered", "object", "whose host gave no answer: id -> what was found"),
        ),
    ),
    Answer("reconcile", "", _keys(("attempts", "list", "what was found, and `changed`", Seen))),
    Answer("gate", "list", _keys(("tasks", "list", "that wait for a yes", TaskRow))),
    Answer("gate", "approve", MOVED),
    Answer("note", "", _keys(("note", "object", "as kept", model.Note))),
    Answer("doc", "add", _keys(("document", "object", "as listed", model.Document))),
    Answer("doc", "list", _keys(
        ("documents", "list", "`document`, and `state`: same, changed or gone"),
    )),
    Answer("doc", "remove", _keys(("path", "text", "that is no longer listed"))),
    Answer("claim", "", _keys(("claim", "object", "yours", model.Claim))),
    Answer("release", "", _keys(
        ("subject", "text", "a task, or `run`"),
        ("released", "truth", "false when nobody had it"),
    )),
    Answer("push", "", _keys(
        ("pushed", "object", "what came of it", Pushed),
        ("dry_run", "truth", "nothing was written"),
    )),
    Answer("pull", "", _keys(
        ("pulled", "object?", "what came of it; null when it needs a yes (exit 7)", Pulled),
        ("offer", "object?", "what was new and can act", Offer),
        ("dry_run", "truth", "nothing was written"),
    )),
    Answer("doctor", "", _keys(
        ("healthy", "truth", "whether nothing needs you"),
        ("findings", "list", "in order", Finding),
    )),
    Answer("host", "bind, add", _keys(HOST, ("facts", "object", "of the machine"))),
    Answer("host", "list", _keys(("hosts", "list", "bindings", model.HostBinding))),
    Answer("host", "probe", _keys(
        ("role", "text", "that was asked"), ("facts", "object", "of the machine"),
    )),
    Answer("host", "rent", _keys(HOST)),
    Answer("host", "put, get", _keys(
        ("role", "text", "whose machine it is"), ("report", "object", "what was done", Report),
    )),
    Answer("host", "clean", _keys(
        ("role", "text", "whose machine it is"),
        ("shrunk", "list", "jobs of which only the outcome is left", Shrunk),
    )),
    Answer("host", "repin", _keys(
        HOST,
        ("was", "text", "fingerprint of the pinned key"),
        ("is", "text", "fingerprint of the key that was taken"),
        ("void", "object", "done tasks whose results may be gone", Dependants),
    )),
    Answer("host", "forget", _keys(
        ("role", "text", "that has no machine now"),
        ("was", "object", "the binding", model.HostBinding),
        ("void", "object", "done tasks whose results may be gone", Dependants),
    )),
    Answer("host", "drill", _keys(
        ("role", "text", "whose machine was tried"),
        ("survived", "truth", "whether everything held"),
        ("steps", "list", "in order", Step),
    )),
    Answer("checkpoints", "", _keys(
        ("checkpoints", "list", "oldest first", Checkpoint),
    )),
    Answer("audit", "", _keys(
        ("path", "text", "the audit's folder on its host"),
        ("report", "object", "as the audit wrote it"),
        ("samples", "list", "rows kept for people"),
    )),
)  # fmt: skip

REHEARSAL = Answer(
    "*",
    "--dry-run",
    _keys(
        ("dry_run", "truth", "true"),
        ("would", "list", "what would be done, with commands, line by line"),
        ("events", "list", "what would be recorded: `kind`, `subject`, `payload`"),
    ),
)
ERROR = _keys(
    ("message", "text", "what is wrong"),
    ("hint", "text", "the next step"),
    ("exit_code", "number", "as the process ends"),
)
EXITS: dict[Exit, str] = {
    Exit.OK: "done",
    Exit.USAGE: "wrong input, or a verb that does not fit the state",
    Exit.TASK_FAILED: "a task failed, or cannot start",
    Exit.CHECK_FAILED: "a check does not hold; PROGRESS.md is not current; doctor found something",
    Exit.UNKNOWN: "a host or a store gives no answer; what became of it is unknown",
    Exit.CONFLICT: "somebody else: a moved revision, a lease, a claim, a fence, a newer state",
    Exit.NEEDS_APPROVAL: "a person's yes is needed",
    Exit.NEEDS_AUTH: "credentials, a passphrase or a host key are needed",
    Exit.OVER_BUDGET: "it would cost more than was allowed",
    Exit.STILL_RUNNING: "left or timed out while work goes on",
}
FOREIGN = {1: "the operating system refused (a full disk, permissions)", 70: "a bug of ours",
           130: "interrupted"}  # fmt: skip


WITHIN: dict[type, tuple[type, ...]] = {Offer: (Contents,), TaskRow: (Live,)}
"""Records inside records."""


def problems_of(answer: Answer, data: dict[str, Any]) -> list[str]:
    """How `data` differs from its description; keys of records are held by their dataclass."""
    known = {key.name: key for key in answer.keys}
    found = [f"`{name}` is not described" for name in data if name not in known]
    for key in answer.keys:
        kind = key.kind.rstrip("?-")
        if key.name not in data:
            if not key.kind.endswith("-"):
                found.append(f"`{key.name}` is missing")
            continue
        value = data[key.name]
        if value is None and "?" in key.kind:
            continue
        if not isinstance(value, KINDS[kind]) or (kind == "number" and isinstance(value, bool)):
            found.append(f"`{key.name}` is {value!r}, no {kind}")
        found += _record_problems(key, value)
    return found


def _record_problems(key: Key, value: Any) -> list[str]:
    if key.record is None:
        return []
    wanted = {field.name for field in fields(key.record)}
    rows = value if isinstance(value, list) else [value]
    return [
        f"`{key.name}` lacks {', '.join(sorted(wanted - row.keys()))}"
        for row in rows
        if wanted - row.keys()
    ]


def records() -> list[type]:
    """Every record that an answer holds, in the order of its first use."""
    found: dict[type, None] = {}
    for answer in ANSWERS:
        for key in answer.keys:
            if key.record is not None:
                found.setdefault(key.record)
                for inner in WITHIN.get(key.record, ()):
                    found.setdefault(inner)
    return list(found)


__all__ = ["ANSWERS", "ERROR", "EXITS", "FOREIGN", "REHEARSAL", "SCHEMA", "problems_of", "records"]
