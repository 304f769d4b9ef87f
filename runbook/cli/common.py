"""What verbs share: the options they repeat and how a JSON answer looks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import click

from runbook import report

if TYPE_CHECKING:
    from runbook.service import Service
    from runbook.verbs.base import Writer
    from runbook.views import NextAction, View
    from state import Event

SCHEMA = 1
"""Version of the JSON answers; it only grows when a field changes its meaning or goes."""

F = TypeVar("F", bound=Callable[..., Any])


class Number(click.IntRange):
    """A whole number; by its name in help and in what is said of a wrong one."""

    name = "number"


class Amount(click.FloatRange):
    """The same with a fraction."""

    name = "amount"


def finite(_ctx: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    """A number of an option; `nan` and `inf` are none that anybody pays or waits for."""
    if value is not None and not isfinite(value):
        raise click.BadParameter(f"{value} is no amount.")
    return value


def json_option(function: F) -> F:
    """`--json`."""
    decorated: F = click.option("--json", "as_json", is_flag=True, help="Answer as JSON.")(function)
    return decorated


def expect_option(function: F) -> F:
    """`--expect-rev`: refuse when the world moved since it was read."""
    decorated: F = click.option(
        "--expect-rev", type=int, help="Refuse (exit 6) when the graph is not at this revision."
    )(function)
    return decorated


def token_option(function: F) -> F:
    """`--token`: a person's yes, for an actor named `agent:...`."""
    decorated: F = click.option(
        "--token", help="For an agent: what `runbook confirm REQUEST` gave a person."
    )(function)
    return decorated


def use_token(service: Service, token: str | None, verb: str, task: str) -> None:
    """Redeems a person's yes, if one was given."""
    if token is not None and not service.dry_run:
        service.redeem(token, verb, task)


def dry_run_option(function: F) -> F:
    """`--dry-run`: say what would be done, and do nothing."""
    decorated: F = click.option(
        "--dry-run", is_flag=True, help="Say what would be done; change nothing."
    )(function)
    return decorated


def tell_rehearsal(service: Writer, verb: str, *, as_json: bool) -> None:
    """What a verb would have done and recorded."""
    events = [
        {"kind": event.kind, "subject": event.subject, "payload": event.payload}
        for event in service.rehearsed
    ]
    if as_json:
        data = {"dry_run": True, "would": service.would, "events": events}
        answer(verb, service.store.revision(), data)
        return
    for text in service.would:
        report.line(f"would {report.clean(text)}" if text[:1] != " " else f"      {text.strip()}")
    for event in service.rehearsed:
        report.line(f"would record: {event.kind} {report.clean(event.subject)} {_few(event)}")
    if not (service.would or service.rehearsed):
        report.line("would change nothing")


def _few(event: Event) -> str:
    """The parts of an event that a person looks for."""
    told = (event.payload.get(key) for key in ("to", "state", "text", "holder", "title", "reason"))
    return report.clean(" ".join(str(one) for one in told if one))


def notify_option(function: F) -> F:
    """`--notify`."""
    decorated: F = click.option(
        "--notify",
        metavar="COMMAND",
        envvar="RUNBOOK_NOTIFY",
        callback=lambda _ctx, _param, value: tuple(shlex.split(value or "")),
        help="Gets a JSON object on stdin when a task fails or waits, and at the end.",
    )(function)
    return decorated


def answer(verb: str, revision: int | None, data: Mapping[str, Any]) -> None:
    """Prints the JSON envelope of a verb."""
    report.json_line({"schema": SCHEMA, "verb": verb, "revision": revision, "data": plain(data)})


def following(view: View) -> NextAction:
    """The next safe action, as a command that works from where the person stands."""
    return replace(view.next, command=report.located(view.next.command))


def tell_next(step: NextAction) -> None:
    """The next safe action in a line."""
    report.line(f"Next: {step.command or 'nothing'}  # {reason_of(step)}")


def reason_of(step: NextAction) -> str:
    """Why, and whose it is."""
    said = f"; it said: {report.clean(step.said)}" if step.said else ""
    tail = said + ("; a person decides this" if step.person else "")
    why = report.clean(step.reason)
    return (why.removesuffix(".") if tail else why) + tail


def plain(value: Any) -> Any:
    """Records as JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
