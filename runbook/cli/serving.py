"""Verbs for servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runbook.cli.acting import Acting, acting
from runbook.cli.advance import advance
from runbook.cli.common import token_option, use_token
from runbook.errors import RunbookError
from runbook.units import parse_duration
from runbook.verbs.serving import DRAIN_S
from runbook.views import RunResult

if TYPE_CHECKING:
    from threading import Event as StopEvent

    from runbook.engine.events import Listener
    from runbook.service import Service


@click.command("restart")
@click.argument("task")
@click.option(
    "--drain",
    metavar="DURATION",
    default=f"{DRAIN_S:g}s",
    show_default=True,
    help="For so long it gets no new requests and answers what it has; 0s: at once.",
)
@token_option
@acting("restart")
def restart_command(call: Acting, task: str, drain: str, token: str | None) -> None:
    """Stop one server and start it again, without the others; wait until it serves.

    What it cannot answer in time breaks off, and clients ask another server.

    Example: runbook restart "serve[1]" --drain 10m
    """
    seconds = _duration(drain)
    if call.dry_run:
        with call.open() as service:
            service.restart(task, drain_s=seconds)
            call.rehearsed(service)
        return

    def engine(service: Service, stop_event: StopEvent, listen: Listener) -> RunResult:
        use_token(service, token, "restart", task)
        service.restart(task, drain_s=seconds)
        if service.view().engine is None:
            return service.run(only=[task], stop_event=stop_event, listen=listen)
        view, _ = service.wait(task, timeout_s=None)  # somebody else advances the graph
        state = view.snapshot.task(task).state.value
        outcome = "done" if state == "serving" else "failed"
        return RunResult(outcome=outcome, reason=f"{task} is {state}")

    advance(
        call.workspace,
        "restart",
        engine,
        expect_rev=call.expect_rev,
        notify=(),
        as_json=call.as_json,
    )


def _duration(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise RunbookError(f"--drain: {error}.", hint="For example --drain 10m.") from error
