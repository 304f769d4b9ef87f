"""What a key may do to the run: refused with a reason, asked when it destroys, then sent off."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any

from remote.passphrases import ask_anew
from runbook.tui.applies import is_made
from runbook.tui.deeds import DONE, Deed, Undo
from runbook.tui.dialogs import AskScreen, NameScreen
from runbook.tui.machines import MachineVerbs

if TYPE_CHECKING:
    from collections.abc import Collection

    from runbook.tui.ports import ServicePort
    from runbook.verbs.checking import Verified
    from state.model import Task


class Verbs(MachineVerbs):
    """Carries the keys of the group Run from the places to the bridge."""

    # --- running ------------------------------------------------------------------------------

    def run(self) -> None:
        """Advance the graph until a gate, a failure, or the end."""
        if not self.refused("run", None):
            self._start("runbook run")

    def do_next(self) -> None:
        """What the line on top says, by the key that does it; what a person decides is asked."""
        app, step = self._app, self._app.view.next
        task = app.view.snapshot.by_id.get(step.task or "")
        match step.verb:
            case "run":
                self.run()
            case "retry" if task is not None and step.command.endswith(" --below"):
                if not self.refused("retry", task):
                    self.send(step.command, lambda service: service.retry(task.id, below=True))
            case "retry" | "supersede":
                self.retry(task)
            case "approve":
                self.approve(task)
            case "verify":
                self.verify(task)
            case "bind":
                self.bind(task.role if task is not None else None)
            case "logs" | "wait" if task is not None:
                app.ways.go("log", task=task.id)
            case "status" if task is not None:
                app.ways.go("task", task=task.id)
            case "nothing":
                app.voice.tell("Nothing is left to do.")
            case _:
                app.voice.tell(f"No key does this; y on the board copies it: {step.command}")

    def until(self, task: Task | None) -> None:
        """Only what a task needs, and the task."""
        if not self.refused("until", task):
            assert task is not None
            self._start(f"runbook run --until {task.id}", until=task.id)

    def only(self, task: Task | None) -> None:
        """One task."""
        if not self.refused("only", task):
            assert task is not None
            self._start(f"runbook run {quote(task.id)}", only=(task.id,))

    def _start(self, command: str, *, until: str | None = None, only: Collection[str] = ()) -> None:
        before = self._app.deeds.under_way
        if before is not None:  # such as the binding that the run needs
            self._start_after(before, command, until=until, only=only)
        elif self._app.bridge.start_engine(until=until, only=only):
            ask_anew()
            self._app.deeds.begin(command, self._app.now()).outcome = DONE
            self._app.voice.clear()
            self._app.voice.did(command)
            self._app.redraw()
        else:
            self._app.voice.tell("It runs already; it stops at the next gate, failure, or the end.")

    def _start_after(
        self, before: Deed, command: str, *, until: str | None, only: Collection[str]
    ) -> None:
        """Wait for what is under way; a run that was to come after it does not if it failed."""

        def begin(_answer: Any) -> None:
            self._app.place.moved_on()
            self._app.redraw()
            if before.well:
                self._start(command, until=until, only=only)

        self._app.voice.tell(f"{command} begins once this is done: {before.command}")
        self._app.bridge.ask(command, lambda _service: None, then=begin)

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
        self._after(screen, f"runbook stop {quote(task.id)}", lambda service: service.stop(task.id))

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

        command = f"runbook restart {quote(task.id)}"
        self._after(screen, command, call, then=lambda _answer: self._go_on(command))

    def _go_on(self, command: str) -> None:
        if self._app.bridge.start_engine():
            self._app.voice.did(command)

    def retry(self, task: Task | None) -> None:
        """A new attempt for a failed task, and for a done one where somebody says why."""
        if self.refused("retry", task):
            return
        assert task is not None
        if task.state == "attention":
            self._supersede(task)
        elif is_made(task):
            self._make_again(task)
        else:
            self.send(f"runbook retry {quote(task.id)}", lambda service: service.retry(task.id))

    def _make_again(self, task: Task) -> None:
        self._app.push_screen(
            AskScreen(
                f"Make {task.id} again?",
                "Why? What needs it keeps what it made of the old results.",
                hint="why the results are made anew",
                needed=True,
            ),
            lambda why: None if not why else self.send(
                f"runbook retry {quote(task.id)} --reason {quote(why)}",
                lambda service: service.retry(task.id, reason=why),
            ),
        )  # fmt: skip

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
            lambda why: None if why is None else self.send(
                f"runbook supersede {quote(task.id)} --reason {quote(why)}",
                lambda service: service.supersede(task.id, reason=why),
            ),
        )  # fmt: skip

    def skip(self, task: Task | None) -> None:
        """Leave a task out; the reason is kept."""
        if self.refused("skip", task):
            return
        assert task is not None
        key = self._app.table.of("undo").shown
        undo = Undo(
            command=f"runbook retry {quote(task.id)}", call=lambda service: service.retry(task.id)
        )
        self._app.push_screen(
            AskScreen(
                f"Skip {task.id}?",
                f"Why? What needs it goes on without it; {key} takes that back.",
                hint="why it is left out",
                needed=True,
            ),
            lambda why: None if not why else self.send(
                f"runbook skip {quote(task.id)} --reason {quote(why)}",
                lambda service: service.skip(task.id, why),
                undo=undo,
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
            lambda why: None if why is None else self.send(
                f"runbook gate approve {quote(task.id)}{f' --reason {quote(why)}' if why else ''}",
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
            lambda text: None if not text else self.send(
                f"runbook note {flag}{quote(text)}" + (f" --task {name}" if name else ""),
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
        keep = Undo(
            command=f"runbook claim {quote(name)}", call=lambda service: service.claim(name)
        )
        give = Undo(
            command=f"runbook release {quote(name)}", call=lambda service: service.release(name)
        )
        wanted, back = (give, keep) if mine else (keep, give)
        self.send(wanted.command, wanted.call, undo=back)

    def undo(self) -> None:
        """Take back the last thing done here that can be."""
        if self.refused("undo", None):
            return
        undo = self._app.deeds.take_back()
        if undo is None:
            self._app.voice.tell(
                "Nothing to take back. A skip, a claim and a release can be; "
                f"{self._app.table.of('retry').shown} runs a stopped task again."
            )
            return
        self.send(undo.command, undo.call)

    def verify(self, task: Task | None) -> None:
        """Run the recorded checks of a done task again."""
        if self.refused("verify", task):
            return
        assert task is not None
        self.send(
            f"runbook verify {quote(task.id)}",
            lambda service: service.verify((task.id,)),
            then=lambda found: self._app.voice.tell(_verified(task.id, found)),
        )


def _verified(task: str, found: Verified) -> str:
    if why := found.left.get(task):
        return f"{task}: not judged: {why}"
    rows = found.tasks.get(task, ())
    bad = [row for row in rows if row.get("verdict") == "fail"]
    unknown = [row for row in rows if row.get("verdict") == "unknown"]
    if bad:
        return f"{task}: {bad[0].get('check')} does not hold."
    said = f"{task}: {len(rows) - len(unknown)} of {len(rows)} checks hold"
    return f"{said}; {len(unknown)} could not be asked." if unknown else f"{said}."
