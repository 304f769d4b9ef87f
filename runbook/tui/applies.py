"""Which keys apply to a task, and why another does not. Pure functions over a `View`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.tui import board_model as model
from runbook.tui.keymap import BY_ID
from state.telling import is_stopped, told_state, waits_for_yes

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.tui.ports import ServicePort
    from runbook.views import Checkpoint, View
    from state.model import Task


def is_made(task: Task) -> bool:
    """Done work, which may be made again."""
    return task.state == "done" and task.kind != "service"


_VERBS: dict[str, tuple[Callable[[Task], bool], str]] = {
    "stop": (lambda task: task.state in model.OPEN, "does not run"),
    "retry": (
        lambda task: task.state in model.RETRIABLE or is_stopped(task) or is_made(task),
        "did not end",
    ),
    "restart": (
        lambda task: task.kind == "service" and task.state in model.OPEN,
        "is no running server",
    ),
    "skip": (lambda task: task.state in model.SKIPPABLE, "cannot be skipped any more"),
    "approve": (waits_for_yes, "waits for nobody's yes"),
    "verify": (
        lambda task: task.state in ("done", "failed"),
        "is verified when it is done, or failed by a check",
    ),
    "until": (lambda task: task.state not in model.FINISHED, "needs no run"),
    "only": (lambda task: task.state not in model.FINISHED, "needs no run"),
}


def refusal(verb: str, task: Task | None, *, read_only: bool) -> str:
    """Why a verb does not apply to a task; empty when it does."""
    if read_only and BY_ID[verb].writes:
        return "Read-only: this screen only looks. Start `runbook tui` without --read-only to act."
    if verb not in _VERBS:
        return ""
    if task is None:
        return "No task is selected."
    applies, otherwise = _VERBS[verb]
    if applies(task):
        return ""
    again = "; Retry runs it again" if verb == "approve" and is_stopped(task) else ""
    return f"{task.id} is {told_state(task)}: it {otherwise}{again}."


def working_keys(view: View, task: Task | None, *, read_only: bool, engine_runs: bool) -> list[str]:
    """The keys worth showing for this task, most wanted first."""
    keys = []
    if not read_only:
        if role_without_machine(view, task):
            keys.append("bind")
        elif not engine_runs and view.next.verb != "nothing":
            keys.append("run")
        keys += [
            verb
            for verb in ("approve", "retry", "stop", "skip")
            if not refusal(verb, task, read_only=False) and not (task and is_made(task))
        ]
    return [*keys, "palette", "copy", "help", "quit"]


def role_without_machine(view: View, task: Task | None) -> str:
    """The role of a task that no machine plays yet; empty when there is nothing to bind."""
    if task is None or not task.role or task.state in model.FINISHED:
        return ""
    return "" if model.host_of(view, task) is not None else task.role


def suggested(view: View, task: Task | None) -> str:
    """The one command that fits the task under the cursor best."""
    if task is None:
        return "runbook status"
    if role := role_without_machine(view, task):
        return f"runbook host bind {role} local"
    state = task.state
    key = (
        "retry" if state in model.RETRIABLE or is_stopped(task)
        else "approve" if state == "gated"
        else "follow" if state in model.OPEN
        else "log" if view.snapshot.latest_attempt(task.id) is not None
        else "run"
    )  # fmt: skip
    return BY_ID[key].command(task.id)


def planned(task: str) -> Callable[[ServicePort], tuple[str, ...]]:
    """Asks what a task will do; what cannot be said yet is said so."""

    def call(service: ServicePort) -> tuple[str, ...]:
        try:
            return tuple(service.plan_task(task))
        except Exception as error:  # noqa: BLE001  a preview must not end anything
            return (f"cannot be said yet: {error}",)

    return call


def checkpoints(task: str) -> Callable[[ServicePort], tuple[Checkpoint, ...]]:
    """Asks for the checkpoints of a run; a host that cannot say has none to show."""

    def call(service: ServicePort) -> tuple[Checkpoint, ...]:
        try:
            return tuple(service.checkpoints(task))
        except Exception:  # noqa: BLE001  asked again soon; the age of the facts tells of the link
            return ()

    return call
