"""The tables beside the graph, told by events alone: what was checked, said, made, bound, paid.

Each row holds what its events tell. A column that no event tells (when a host was last seen) is
not in it, and events of older versions tell less than those of today.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from state.model import JSON, Event

Row = dict[str, "JSON"]
Facts = dict[str, dict[str, Row]]
"""Table -> key -> what was told of the row."""

KEYS = {
    "check_run": "id",
    "note": "id",
    "artifact": "id",
    "approval": "id",
    "rental": "id",
    "host": "role",
    "host_epoch": "seq",
    "claim": "subject",
    "document": "path",
    "secret": "name",
}
"""The tables that are told, each with the column that names a row."""


def tell(events: Iterable[Event]) -> Facts:
    """The rows that must be there after these events, which begin with the first."""
    facts: Facts = {table: {} for table in KEYS}
    for event in events:
        apply = HANDLERS.get(event.kind)
        if apply is not None:
            apply(facts, event)
    return facts


def _checked(facts: Facts, event: Event) -> None:
    told = {key: value for key, value in event.payload.items() if key != "check"}
    facts["check_run"][event.payload["check"]] = {"task": event.task, "at": event.at, **told}


def _noted(facts: Facts, event: Event) -> None:
    told = {key: value for key, value in event.payload.items() if key != "note"}
    facts["note"][event.payload["note"]] = {"task": event.task, "at": event.at, **told}


def _made(facts: Facts, event: Event) -> None:
    told = {key: value for key, value in event.payload.items() if key != "artifact"}
    facts["artifact"][event.payload["artifact"]] = {"task": event.task, "at": event.at, **told}


def _approved(facts: Facts, event: Event) -> None:
    row = {"task": event.task, "at": event.at, "actor": event.actor, **event.payload}
    facts["approval"][event.subject] = row


def _bound(facts: Facts, event: Event) -> None:
    untold = ("rental", "seen_at")
    row = {key: value for key, value in event.payload.items() if key not in untold}
    facts["host"][event.subject] = row
    if "rental" in event.payload:
        _end_rental(facts, event)
        facts["rental"][event.payload["rental"]] = {
            "role": event.subject,
            "usd_per_hour": row.get("usd_per_hour"),
            "since": event.at,
            "until": None,
        }


def _end_rental(facts: Facts, event: Event) -> None:
    role = event.payload.get("role", event.subject)
    for row in facts["rental"].values():
        if row["role"] == role and row["until"] is None:
            row["until"] = event.at


def _seen(facts: Facts, event: Event) -> None:
    news = dict(event.payload)
    proof = news.pop("identity", {})
    news.pop("was_epoch", None)
    facts["host"][event.subject].update(news)
    if "epoch" in news:
        row = {"role": event.subject, "epoch": news["epoch"], "identity": proof, "at": event.at}
        facts["host_epoch"][str(len(facts["host_epoch"]) + 1)] = row


def _silent(facts: Facts, event: Event) -> None:
    facts["host"][event.subject]["unreachable_since"] = event.at


def _answers(facts: Facts, event: Event) -> None:
    facts["host"][event.subject]["unreachable_since"] = None


def _unbound(facts: Facts, event: Event) -> None:
    facts["host"].pop(event.subject, None)


def _claimed(facts: Facts, event: Event) -> None:
    told = {key: event.payload[key] for key in ("holder", "token", "for_s")}
    facts["claim"][event.subject] = {"at": event.at, "released_at": None, **told}


def _given_back(facts: Facts, event: Event) -> None:
    facts["claim"][event.subject]["released_at"] = event.at


def _listed(facts: Facts, event: Event) -> None:
    facts["document"][event.subject] = {"at": event.at, "actor": event.actor, **event.payload}


def _unlisted(facts: Facts, event: Event) -> None:
    facts["document"].pop(event.subject, None)


def _declared(facts: Facts, event: Event) -> None:
    facts["secret"].setdefault(event.subject, {}).update(event.payload)


def _undeclared(facts: Facts, event: Event) -> None:
    facts["secret"].pop(event.subject, None)


HANDLERS: dict[str, Callable[[Facts, Event], None]] = {
    "check.recorded": _checked,
    "note.added": _noted,
    "decision.made": _noted,
    "artifact.recorded": _made,
    "task.approved": _approved,
    "host.bound": _bound,
    "host.seen": _seen,
    "host.unreachable": _silent,
    "host.reachable": _answers,
    "host.unbound": _unbound,
    "rental.ended": _end_rental,
    "claim.taken": _claimed,
    "claim.released": _given_back,
    "document.added": _listed,
    "document.removed": _unlisted,
    "secret.declared": _declared,
    "secret.seen": _declared,
    "secret.removed": _undeclared,
}
