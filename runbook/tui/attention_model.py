"""What waits for a person, with the evidence for and against and the choices. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, Any

from runbook.reasons import is_over, link_word, other_key, wrong_answer
from runbook.retries import after_loss
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import naming
from runbook.views import json_object
from state.telling import is_stopped, told_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from runbook.views import View
    from state.model import Attempt, HostBinding, Task

SOON_S = 2 * 3600.0
"""A rented machine that ends within this time is a matter for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One thing that can be done about it."""

    key: str
    """Id of the key that does it; empty when only the command does."""
    command: str
    means: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Matter:
    """One thing that waits for a person."""

    id: str
    kind: str
    state: str
    """Whose glyph and colour it wears."""
    title: str
    why: str
    task: str | None = None
    role: str | None = None
    speaks_for: tuple[str, ...] = ()
    """Evidence that it still runs, or that the result is good."""
    speaks_against: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()


_OF_TASKS = frozenset({"attention", "unhealthy", "failed", "gated", "stale"})


def matters(view: View, *, now: datetime) -> list[Matter]:
    """Everything, most urgent first."""
    found: list[Matter] = []
    tasks = [t for t in view.snapshot.tasks if t.state in _OF_TASKS and not t.removed]
    for make in (_lost, _unhealthy, _failed, _stopped, _gate, _stale):
        found += [matter for task in tasks if (matter := make(view, task)) is not None]
    found += _hosts(view, now)
    found += _claims(view)
    found += _documents(view)
    if view.edited:
        found.append(_edited())
    return found


def _command(verb: str, task: Task, *, why: bool = False) -> str:
    return f"runbook {verb} {quote(task.id)}{' --reason ...' if why else ''}"


def _lost(view: View, task: Task) -> Matter | None:
    if task.state != "attention":
        return None
    attempt = view.snapshot.latest_attempt(task.id)
    again = after_loss(view.snapshot, task)
    then = f"; a run sweeps it, then tries again ({again})" if again else ""
    return Matter(
        id=f"task:{task.id}", kind="lost", state="attention", task=task.id, role=task.role,
        title=task.title, why=f"{task.reason}{then}",
        speaks_for=tuple(_alive(view, task, attempt)),
        speaks_against=tuple(_dead(view, task, attempt)),
        choices=(
            Choice(key="log", command=_command("logs", task), means="look at what it said last"),
            Choice(key="shell", command=f"runbook host shell {task.role or 'ROLE'}",
                   means="look on the machine itself"),
            Choice(key="retry", command=_command("supersede", task, why=True),
                   means="give it up: its host makes sure that nothing of it runs, then a new "
                         "attempt may begin"),
            Choice(key="skip", command=_command("skip", task, why=True),
                   means="go on without it"),
        ),
    )  # fmt: skip


def _alive(view: View, task: Task, attempt: Attempt | None) -> Iterator[str]:
    """What says that it may still run, or had finished."""
    live = view.live.get(task.id)
    if attempt is not None and live is not None and live.attempt == attempt.id:
        yield f"its supervisor beat {live.beat} times, last seen {live.seen_at}"
        share = model.fraction(live.progress)
        if share is not None:
            yield f"it had done {share:.0%}"
    host = model.host_of(view, task)
    if attempt is not None and host is not None and attempt.epoch and host.epoch == attempt.epoch:
        yield "the machine is in the same boot as when it started"
    for check in view.snapshot.checks_of(task.id):
        if check.verdict == "pass":
            yield f"{check.name} holds: {_said(check.evidence)}"
    survivors = attempt.evidence.get("survivors") if attempt is not None else None
    for row in survivors if isinstance(survivors, list) else ():
        yield f"still there: {_said(row)}"


def _dead(view: View, task: Task, attempt: Attempt | None) -> Iterator[str]:
    """What says that it is gone."""
    if attempt is None:
        yield "no attempt is recorded"
        return
    host = model.host_of(view, task)
    if host is not None and attempt.epoch and host.epoch and host.epoch != attempt.epoch:
        yield "the machine was booted or rebuilt since it started"
    if attempt.lost_reason:
        yield f"lost: {attempt.lost_reason.replace('_', ' ')}"
    for name, value in attempt.evidence.items():
        if name != "survivors":
            yield f"{naming.words(name)}: {_said(value)}"
    for check in view.snapshot.checks_of(task.id):
        if check.verdict == "fail":
            yield f"{check.name} does not hold: {_said(check.evidence)}"


def _unhealthy(view: View, task: Task) -> Matter | None:
    if task.state != "unhealthy":
        return None
    return Matter(
        id=f"task:{task.id}", kind="unhealthy", state="unhealthy", task=task.id, role=task.role,
        title=task.title, why=task.reason,
        speaks_for=tuple(_checks(view, task, "pass")),
        speaks_against=tuple(_checks(view, task, "fail")),
        choices=(
            Choice(key="log", command=_command("logs", task), means="why it does not answer"),
            Choice(
                key="restart", command=_command("restart", task), means="it alone, once more"
            ),
        ),
    )  # fmt: skip


def _failed(view: View, task: Task) -> Matter | None:
    if task.state != "failed":
        return None
    return _ended_early(view, task, "a new attempt, once the cause is mended")


def _stopped(view: View, task: Task) -> Matter | None:
    return _ended_early(view, task, "run it again") if is_stopped(task) else None


def _ended_early(view: View, task: Task, again: str) -> Matter:
    attempt = view.snapshot.latest_attempt(task.id)
    return Matter(
        id=f"task:{task.id}", kind=told_state(task), state=told_state(task),
        task=task.id, role=task.role, title=task.title, why=task.reason,
        speaks_for=tuple(_checks(view, task, "pass")),
        speaks_against=(*_ended(attempt), *_checks(view, task, "fail")),
        choices=(
            Choice(key="log", command=_command("logs", task), means="what it said last"),
            Choice(key="retry", command=_command("retry", task), means=again),
            Choice(key="skip", command=_command("skip", task, why=True),
                   means="go on without it"),
        ),
    )  # fmt: skip


def _ended(attempt: Attempt | None) -> Iterator[str]:
    if attempt is None or attempt.cls is None:
        return
    code = f"exit code {attempt.exit_code}" if attempt.exit_code else ""
    signal = f"signal {attempt.signal}" if attempt.signal else ""
    how = "" if attempt.cls in ("exit", "signal") else attempt.cls.replace("_", " ")
    said = ", ".join(filter(None, (how, code, signal))) or str(attempt.cls)
    yield f"attempt {attempt.number} ended: {said}"


def _gate(view: View, task: Task) -> Matter | None:
    if task.state != "gated" or is_stopped(task):
        return None
    over = is_over(task)
    needs = [view.snapshot.by_id[n.task] for n in task.needs if n.task in view.snapshot.by_id]
    return Matter(
        id=f"task:{task.id}", kind="budget" if over else "gate", state="gated",
        task=task.id, role=task.role,
        title=task.title, why=task.reason or "waits for a person's yes",
        speaks_for=tuple(
            f"{need.id} is {told_state(need)}" + (f": {_said(need.out)}" if need.out else "")
            for need in needs
        ),
        choices=(
            Choice(key="approve", command=_command("gate approve", task), means="say yes"),
            Choice(key="skip", command=_command("skip", task, why=True),
                   means="go on without it"),
        ),
    )  # fmt: skip


def _stale(view: View, task: Task) -> Matter | None:
    if task.state != "stale":
        return None
    return Matter(
        id=f"task:{task.id}", kind="stale", state="stale", task=task.id, role=task.role,
        title=task.title, why=task.reason or "its definition or its inputs changed",
        speaks_for=tuple(_checks(view, task, "pass")),
        speaks_against=tuple(_checks(view, task, "fail")),
        choices=(
            Choice(key="retry", command=_command("retry", task), means="do it again"),
            Choice(key="skip", command=_command("skip", task, why=True),
                   means="keep what there is and go on"),
        ),
    )  # fmt: skip


def _checks(view: View, task: Task, verdict: str) -> Iterator[str]:
    for check in view.snapshot.checks_of(task.id):
        if check.verdict == verdict:
            yield f"{check.name}: {_said(check.evidence)}"


def _hosts(view: View, now: datetime) -> Iterator[Matter]:
    bound = {host.role: host for host in view.snapshot.hosts}
    for role in roles_of(view):
        host = bound.get(role)
        if host is None:
            wanted = [
                task.id
                for task in view.snapshot.tasks
                if task.role == role and task.state not in model.FINISHED and not task.removed
            ]
            if wanted:
                yield _unbound(role, wanted)
        elif host.unreachable_since:
            yield _silent(view, host, now)
        else:
            yield from _ending(host, now)


def _unbound(role: str, tasks: list[str]) -> Matter:
    more = " ..." if len(tasks) > 5 else ""
    return Matter(
        id=f"host:{role}", kind="unbound", state="gated", role=role,
        title=f"No machine plays {role}",
        why=f"{len(tasks)} tasks need it: {', '.join(tasks[:5])}{more}",
        choices=(
            Choice(key="bind", command=f"runbook host bind {role} USER@ADDRESS",
                   means="say which machine plays it, or local for this one"),
        ),
    )  # fmt: skip


def _silent(view: View, host: HostBinding, now: datetime) -> Matter:
    gone = fmt.duration(fmt.between(host.unreachable_since, now))
    why = "unreachable is not dead, its jobs may well go on"
    if key := other_key(view.snapshot, host.role):
        why = (
            f"it shows another host key, {key}; if it was rebuilt: `runbook host repin {host.role}`"
        )
    wrong = "" if key else wrong_answer(view.snapshot, host.role)
    if wrong:
        why = f"{fmt.clean(wrong)}; its jobs may well go on"
    running = [t.id for t in view.snapshot.tasks if t.role == host.role and t.state in model.OPEN]
    return Matter(
        id=f"host:{host.role}", kind=link_word(view.snapshot, host.role), state="attention",
        role=host.role,
        title=f"{host.role} {'answers wrongly' if wrong else 'does not answer'}",
        why=f"for {gone}; {why}",
        speaks_for=tuple(f"{name} ran when it was last seen" for name in running),
        speaks_against=(f"no {'right ' if wrong else ''}answer since {host.unreachable_since}",),
        choices=(
            Choice(key="probe", command=f"runbook host probe {host.role}", means="ask again"),
            Choice(key="shell", command=f"runbook host shell {host.role}", means="try by hand"),
        ),
    )  # fmt: skip


def _ending(host: HostBinding, now: datetime) -> Iterator[Matter]:
    end = fmt.parse_time(str(rental(host).get("ends") or ""))
    if end is None:
        return
    left = (end - now).total_seconds()
    if left < SOON_S:
        when = f"in {fmt.duration(left)}" if left > 0 else f"{fmt.duration(-left)} ago"
        yield Matter(
            id=f"host:{host.role}", kind="budget", state="attention", role=host.role,
            title=f"{host.role} is rented until {end:%d %b %H:%M} UTC", why=f"that is {when}",
            choices=(
                Choice(key="", command="", means="extend the rent with its provider, or copy what "
                       "is worth keeping"),
            ),
        )  # fmt: skip


def _claims(view: View) -> Iterator[Matter]:
    """What others keep for themselves: their verbs come first."""
    for claim in view.snapshot.claims:
        left = view.claims.get(claim.subject, 0)
        if left <= 0:
            continue
        known = view.snapshot.by_id.get(claim.subject)
        yield Matter(
            id=f"claim:{claim.subject}", kind="claimed", state="ready",
            task=known.id if known is not None else None,
            title=f"{claim.subject} belongs to {claim.holder}",
            why=f"for {fmt.duration(left)} more{f': {claim.reason}' if claim.reason else ''}",
            choices=(
                Choice(key="claim" if known is not None else "",
                       command=f"runbook release {claim.subject}",
                       means="give it back, when it is yours"),
                Choice(key="", command=f"runbook claim {claim.subject} --take-over --reason ...",
                       means="take it over, when its holder is gone"),
            ),
        )  # fmt: skip


def _documents(view: View) -> Iterator[Matter]:
    for path, state in view.documents.items():
        if state != "same":
            yield Matter(
                id=f"doc:{path}", kind="document", state="stale",
                title=f"{path} {'changed' if state == 'changed' else 'is gone'}",
                why="it is on the list of what to read before taking over",
                choices=(
                    Choice(key="", command=f"runbook doc add {path}", means="it was read again"),
                ),
            )  # fmt: skip


def _edited() -> Matter:
    return Matter(
        id="file", kind="edited", state="stale", title="runbook.yaml was edited",
        why="the graph runs as it was before",
        choices=(
            Choice(key="", command="runbook plan", means="what would change"),
            Choice(key="", command="runbook init", means="take it over"),
        ),
    )  # fmt: skip


def roles_of(view: View) -> list[str]:
    """Every host role: those of the runbook, and those that are bound."""
    named = json_object(view.snapshot.meta.extra.get("roles", "{}"))
    used = [task.role for task in view.snapshot.tasks if task.role and not task.removed]
    return list(dict.fromkeys([*named, *(h.role for h in view.snapshot.hosts), *used]))


def rental(host: HostBinding) -> Mapping[str, Any]:
    """Price and end of the rent: as bound, else as the machine's facts tell them."""
    facts = host.facts
    return {
        "price": host.usd_per_hour
        if host.usd_per_hour is not None
        else facts.get("price_per_hour"),
        "ends": host.ends_at or facts.get("rental_ends"),
    }


def _said(value: Any) -> str:
    if isinstance(value, dict):
        rows = [naming.pair(k, v) for k, v in list(value.items())[:6]]
        return fmt.clean(", ".join(rows), most=300)
    return fmt.clean(fmt.value(value), most=300)
