"""What a key may do to the run: refused with a reason, asked when it destroys, then sent off."""

from __future__ import annotations

import shlex
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from runbook.errors import RunbookError
from runbook.tui import board_model as model
from runbook.tui.dialogs import AskScreen, NameScreen
from runbook.tui.keymap import BY_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from runbook.tui.app import RunbookApp
    from runbook.tui.ports import ServicePort
    from runbook.views import View
    from state.model import Task

OWN_LIMIT_S = 180.0
"""For a machine that is met for the first time."""

_VERBS: dict[str, tuple[Callable[[Task], bool], str]] = {
    "stop": (lambda task: task.state in model.OPEN, "does not run"),
    "retry": (
        lambda task: task.state in model.RETRIABLE or model.is_stopped(task),
        "did not fail",
    ),
    "restart": (
        lambda task: task.kind == "service" and task.state in model.OPEN,
        "is no running server",
    ),
    "skip": (lambda task: task.state in model.SKIPPABLE, "cannot be skipped any more"),
    "approve": (
        lambda task: task.state == "gated" and not model.is_stopped(task),
        "waits for nobody's yes",
    ),
    "verify": (lambda task: task.state == "done", "is verified when it is done"),
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
    return [*keys, "palette", "copy", "help", "quit"]


def suggested(view: View, task: Task | None) -> str:
    """The one command that fits the task under the cursor best."""
    if task is None:
        return "runbook status"
    state = task.state
    key = (
        "retry" if state in model.RETRIABLE or model.is_stopped(task)
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


def own_command(service: ServicePort, *words: str) -> str:
    """Runs one of our own verbs, whose checks and messages are not repeated here."""
    argv = [sys.executable, "-m", "runbook", "-w", str(service.workspace.root), *words]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=OWN_LIMIT_S,
    )  # fmt: skip
    if done.returncode:
        first, _, rest = done.stderr.strip().partition("\n")
        message = first.removeprefix("runbook: ") or f"It ended with {done.returncode}."
        raise RunbookError(message, hint=" ".join(rest.split()))
    return done.stdout


class Verbs:
    """Carries the keys of the group Run from the places to the bridge."""

    def __init__(self, app: RunbookApp) -> None:
        self._app = app

    # --- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Advance the graph until a gate, a failure, or the end."""
        if not self.refused("run", None):
            self._start("runbook run")

    def until(self, task: Task | None) -> None:
        """Only what a task needs, and the task."""
        if not self.refused("until", task):
            assert task is not None
            self._start(f"runbook run --until {task.id}", until=task.id)

    def only(self, task: Task | None) -> None:
        """One task."""
        if not self.refused("only", task):
            assert task is not None
            self._start(f"runbook run {task.id}", only=(task.id,))

    def _start(self, command: str, *, until: str | None = None, only: Collection[str] = ()) -> None:
        if self._app.bridge.start_engine(until=until, only=only):
            self._app.hush()
            self._app.did(command)
            self._app.redraw()
        else:
            self._app.tell("It runs already; it stops at the next gate, failure, or the end.")

    # --- deciding -----------------------------------------------------------------------------

    def stop(self, task: Task | None) -> None:
        """Stop a task, only after its name was typed."""
        if self.refused("stop", task):
            return
        assert task is not None
        screen = NameScreen(
            f"Stop {task.id}?",
            f"{task.title}, on {self._where(task)}. Its process group gets TERM, then KILL, and is "
            "looked for until it is gone. What it wrote stays; a retry begins a new attempt.",
            name=task.id,
        )
        self._after(screen, f"runbook stop {task.id}", lambda service: service.stop(task.id))

    def restart(self, task: Task | None) -> None:
        """Have a server drained, stopped, verified and started again."""
        if self.refused("restart", task):
            return
        assert task is not None
        screen = NameScreen(
            f"Restart {task.id}?",
            f"{task.title}, on {self._where(task)}. It gets no new requests and has a "
            "minute for those it has; then it is stopped, verified, and started again as a new "
            "attempt. Other servers go on.",
            name=task.id,
        )

        def call(service: ServicePort) -> None:
            service.restart(task.id)

        command = f"runbook restart {task.id}"
        self._after(screen, command, call, then=lambda _answer: self._go_on(command))

    def _go_on(self, command: str) -> None:
        if self._app.bridge.start_engine():
            self._app.did(command)

    def retry(self, task: Task | None) -> None:
        """A new attempt for a failed task."""
        if self.refused("retry", task):
            return
        assert task is not None
        if task.state == "attention":
            self._supersede(task)
        else:
            self._send(f"runbook retry {task.id}", lambda service: service.retry(task.id))

    def _supersede(self, task: Task) -> None:
        """A lost attempt may still run somewhere; giving it up takes its name and a reason."""
        self._app.push_screen(
            NameScreen(
                f"Give up the lost attempt of {task.id}?",
                f"{task.reason} Its host is asked to make sure that nothing of it runs, then a "
                "new attempt may begin.",
                name=task.id,
                reason=True,
            ),
            lambda why: None if why is None else self._send(
                f"runbook supersede {task.id} --reason {shlex.quote(why)}",
                lambda service: service.supersede(task.id, reason=why),
            ),
        )  # fmt: skip

    def skip(self, task: Task | None) -> None:
        """Leave a task out; the reason is kept."""
        if self.refused("skip", task):
            return
        assert task is not None
        key = self._app.table.of("retry").shown
        self._app.push_screen(
            AskScreen(
                f"Skip {task.id}?",
                f"Why? What needs it goes on without it; {key} takes that back.",
                hint="why it is left out",
                needed=True,
            ),
            lambda why: None if not why else self._send(
                f"runbook skip {task.id} --reason {shlex.quote(why)}",
                lambda service: service.skip(task.id, why),
            ),
        )  # fmt: skip

    def approve(self, task: Task | None) -> None:
        """Open a gate."""
        if self.refused("approve", task):
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

    def note(self, task: Task | None, *, decision: bool = False) -> None:
        """A note or a decision, kept with the task."""
        if self.refused("decision" if decision else "note", task):
            return
        name = task.id if task is not None else None
        word = "Decision" if decision else "Note"
        flag = "--decision " if decision else ""
        self._app.push_screen(
            AskScreen(
                f"{word} on {name}" if name else word,
                "Kept in PROGRESS.md and in the brief.",
                hint="what whoever comes next should know",
                needed=True,
            ),
            lambda text: None if not text else self._send(
                f"runbook note {flag}{shlex.quote(text)}" + (f" --task {name}" if name else ""),
                lambda service: service.note(text, task=name, decision=decision),
            ),
        )  # fmt: skip

    def claim(self, task: Task | None) -> None:
        """Keep a task for oneself for a while, or give it back."""
        if self.refused("claim", task):
            return
        name = task.id if task is not None else "run"
        view = self._app.view
        holder = next((c.holder for c in view.snapshot.claims if c.subject == name), "")
        mine = holder == self._app.service.actor and view.claims.get(name, 0) > 0
        if mine:
            self._send(f"runbook release {name}", lambda service: service.release(name))
        else:
            self._send(f"runbook claim {name}", lambda service: service.claim(name))

    def verify(self, task: Task | None) -> None:
        """Run the recorded checks of a done task again."""
        if self.refused("verify", task):
            return
        assert task is not None
        self._send(
            f"runbook verify {task.id}",
            lambda service: service.verify((task.id,)),
            then=lambda found: self._app.tell(_verified(task.id, found)),
        )

    # --- machines -----------------------------------------------------------------------------

    def bind(self, role: str | None) -> None:
        """Say which machine plays a role; it is met before anything changes."""
        if self.refused("bind", None) or self._no_role(role):
            return
        self._app.push_screen(
            AskScreen(
                f"Which machine plays {role}?",
                "user@address (with -P PORT if it is not 22), or local for this machine. It is "
                "asked for its facts, and its key is pinned, before anything changes.",
                hint="local",
                needed=True,
            ),
            lambda said: None if not said else self._send(
                f"runbook host bind {role} {said}",
                lambda service: own_command(service, "host", "bind", str(role), *said.split()),
                then=lambda _said: self._app.tell(f"{role} is {said}."),
            ),
        )  # fmt: skip

    def _no_role(self, role: str | None) -> bool:
        if role is None:
            self._app.tell("No machine belongs to this; 4 lists them.")
        return role is None

    def probe(self, role: str | None) -> None:
        """Ask a machine for its facts, off the screen's thread."""
        if self.refused("probe", None) or self._no_role(role):
            return
        assert role is not None
        self._send(f"runbook host probe {role}", lambda service: service.probe(role))

    def reconcile(self) -> None:
        """Look again, for certain, at what may run."""
        if not self.refused("reconcile", None):
            self._send(
                "runbook reconcile",
                lambda service: service.reconcile(),
                then=lambda seen: self._app.tell(f"Looked at {len(seen)} attempts."),
            )

    def shell(self, role: str | None) -> None:
        """A shell on the machine behind a role; the screen comes back when it ends."""
        if self.refused("shell", None) or self._no_role(role):
            return
        assert role is not None
        self._app.suspend_for(f"runbook host shell {role}", ("host", "shell", role))

    # --- inside -------------------------------------------------------------------------------

    def _where(self, task: Task) -> str:
        attempt = self._app.view.snapshot.latest_attempt(task.id)
        return attempt.host if attempt is not None else task.role or "its host"

    def refused(self, verb: str, task: Task | None) -> bool:
        """Whether it does not apply; then the person was told why."""
        why = refusal(verb, task, read_only=self._app.read_only)
        if why:
            self._app.tell(why)
        return bool(why)

    def _after(
        self,
        screen: NameScreen,
        command: str,
        call: Callable[[ServicePort], object],
        *,
        then: Callable[[Any], None] | None = None,
    ) -> None:
        self._app.push_screen(
            screen, lambda yes: None if yes is None else self._send(command, call, then=then)
        )

    def _send(
        self,
        command: str,
        call: Callable[[ServicePort], object],
        *,
        then: Callable[[Any], None] | None = None,
    ) -> None:
        self._app.did(command, pending=True)
        self._app.bridge.ask(command, call, then=then)


def _verified(task: str, found: Any) -> str:
    rows = [row for rows in found.values() for row in rows] if isinstance(found, dict) else []
    bad = [row for row in rows if row.get("verdict") == "fail"]
    unknown = [row for row in rows if row.get("verdict") == "unknown"]
    if bad:
        return f"{task} is stale now: {bad[0].get('check')} no longer holds."
    said = f"{task}: {len(rows) - len(unknown)} of {len(rows)} checks hold"
    return f"{said}; {len(unknown)} could not be asked." if unknown else f"{said}."
