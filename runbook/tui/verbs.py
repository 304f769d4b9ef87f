"""What a key may do to the run: refused with a reason, asked when it destroys, then sent off."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from runbook.tui import board_model as model
from runbook.tui.dialogs import AskScreen, ConfirmScreen
from runbook.tui.keymap import BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.tui.app import RunbookApp
    from runbook.views import View
    from state.model import Task

_VERBS: dict[str, tuple[Callable[[Task], bool], str]] = {
    "stop": (lambda task: task.state in model.OPEN, "does not run"),
    "retry": (lambda task: task.state in model.RETRIABLE, "did not fail"),
    "skip": (lambda task: task.state in model.SKIPPABLE, "cannot be skipped any more"),
    "approve": (lambda task: task.state == "gated", "waits for nobody's yes"),
}


def refusal(verb: str, task: Task | None, *, read_only: bool) -> str:
    """Why a verb does not apply to a task; empty when it does."""
    if read_only and BY_ID[verb].writes:
        return "Read-only: this screen only looks. Start `runbook tui` without --read-only to act."
    if verb in ("run", "note") or verb not in _VERBS:
        return ""
    if task is None:
        return "No task is selected."
    applies, otherwise = _VERBS[verb]
    return "" if applies(task) else f"{task.id} is {task.state}: it {otherwise}."


def working_keys(view: View, task: Task | None, *, read_only: bool, engine_runs: bool) -> list[str]:
    """The keys worth showing for this task, most wanted first."""
    keys = []
    if not read_only:
        if not engine_runs and view.next.verb != "nothing":
            keys.append("run")
        keys += [
            verb
            for verb in ("approve", "retry", "stop", "skip")
            if not refusal(verb, task, read_only=False)
        ]
    keys += ["log", "filter", "palette", "help", "quit"]
    if not read_only:
        keys.insert(-2, "note")
    return keys


def suggested(view: View, task: Task | None) -> str:
    """The one command that fits the task under the cursor best."""
    if task is None:
        return "runbook status"
    state = task.state
    key = (
        "approve" if state == "gated"
        else "retry" if state in model.RETRIABLE
        else "follow" if state in model.OPEN
        else "log" if view.snapshot.latest_attempt(task.id) is not None
        else "run"
    )  # fmt: skip
    return BY_ID[key].command(task.id)


class Verbs:
    """Carries the keys of the group Run from the board to the bridge."""

    def __init__(self, app: RunbookApp) -> None:
        self._app = app

    def run(self) -> None:
        """Advance the graph until a gate, a failure, or the end."""
        if self._refused("run", None):
            return
        if self._app.bridge.start_engine():
            self._app.did("runbook run")
            self._app.redraw()
        else:
            self._app.tell("It runs already; it stops at the next gate, failure, or the end.")

    def stop(self, task: Task | None) -> None:
        """Stop a task, by name and only after a yes."""
        if self._refused("stop", task):
            return
        assert task is not None
        attempt = self._app.view.snapshot.latest_attempt(task.id)
        host = attempt.host if attempt is not None else task.role or "its host"
        screen = ConfirmScreen(
            f"Stop {task.id}?",
            f"{task.title}, on {host}. Its process group gets TERM, then KILL, and is looked for "
            "until it is gone. What it wrote stays; a retry begins a new attempt.",
            yes="Stop it",
        )
        self._after(screen, f"runbook stop {task.id}", lambda service: service.stop(task.id))

    def retry(self, task: Task | None) -> None:
        """A new attempt for a failed task."""
        if self._refused("retry", task):
            return
        assert task is not None
        if task.state == "attention":
            self._supersede(task)
        else:
            self._send(f"runbook retry {task.id}", lambda service: service.retry(task.id))

    def _supersede(self, task: Task) -> None:
        """A lost attempt may still run somewhere; giving it up takes a reason."""
        self._app.push_screen(
            AskScreen(
                f"Give up the lost attempt of {task.id}?",
                f"{task.reason} Its host is asked to make sure that nothing of it runs, then a "
                "new attempt may begin. Why?",
                needed=True,
            ),
            lambda why: None if not why else self._send(
                f"runbook supersede {task.id} --reason {shlex.quote(why)}",
                lambda service: service.supersede(task.id, reason=why),
            ),
        )  # fmt: skip

    def skip(self, task: Task | None) -> None:
        """Leave a task out; the reason is kept."""
        if self._refused("skip", task):
            return
        assert task is not None
        self._app.push_screen(
            AskScreen(f"Skip {task.id}?", "Why? What needs it goes on without it.", needed=True),
            lambda why: None if not why else self._send(
                f"runbook skip {task.id} --reason {shlex.quote(why)}",
                lambda service: service.skip(task.id, why),
            ),
        )  # fmt: skip

    def approve(self, task: Task | None) -> None:
        """Open a gate."""
        if self._refused("approve", task):
            return
        assert task is not None
        self._app.push_screen(
            AskScreen(
                f"Approve {task.id}?",
                task.reason or task.title,
                hint="what was looked at (may stay empty)",
            ),
            lambda why: None if why is None else self._send(
                f"runbook gate approve {task.id}{f' --reason {shlex.quote(why)}' if why else ''}",
                lambda service: service.approve(task.id, why),
            ),
        )  # fmt: skip

    def note(self, task: Task | None) -> None:
        """A note, kept with the task."""
        if self._refused("note", task):
            return
        name = task.id if task is not None else None
        self._app.push_screen(
            AskScreen(
                f"Note on {name}" if name else "Note",
                "Kept in PROGRESS.md and in the brief.",
                needed=True,
            ),
            lambda text: None if not text else self._send(
                f"runbook note {shlex.quote(text)}" + (f" --task {name}" if name else ""),
                lambda service: service.note(text, task=name),
            ),
        )  # fmt: skip

    def _refused(self, verb: str, task: Task | None) -> bool:
        why = refusal(verb, task, read_only=self._app.read_only)
        if why:
            self._app.tell(why)
        return bool(why)

    def _after(self, screen: ConfirmScreen, command: str, call: Callable[..., object]) -> None:
        self._app.push_screen(screen, lambda yes: self._send(command, call) if yes else None)

    def _send(self, command: str, call: Callable[..., object]) -> None:
        self._app.did(command, pending=True)
        self._app.bridge.ask(command, call)
