"""What the keys do that act on the run or lead elsewhere, the same in every place."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.screen import Screen

if TYPE_CHECKING:
    from runbook.tui.app import RunbookApp
    from state.model import Task


class ActingScreen(Screen[None]):
    """Hands a key to `verbs`, with the task or the machine that it is about."""

    done = ""
    """The command of what was just carried out, until the cursor moves."""

    @property
    def home(self) -> RunbookApp:
        """The app, by its real type."""
        return cast("RunbookApp", self.app)

    @property
    def current_task(self) -> Task | None:
        """The task that the keys act on."""
        return self.home.ways.subject

    @property
    def current_role(self) -> str | None:
        """The host role that the keys act on."""
        task = self.current_task
        return task.role if task is not None else None

    def suggested(self) -> str:
        """The one command that fits what is shown best."""
        raise NotImplementedError

    # --- acting: sent off by `verbs` ----------------------------------------------------------

    def action_run(self) -> None:
        self.home.verbs.run()

    def action_do_next(self) -> None:
        self.home.verbs.do_next()

    def action_until(self) -> None:
        self.home.verbs.until(self.current_task)

    def action_only(self) -> None:
        self.home.verbs.only(self.current_task)

    def action_stop(self) -> None:
        self.home.verbs.stop(self.current_task)

    def action_retry(self) -> None:
        self.home.verbs.retry(self.current_task)

    def action_restart(self) -> None:
        self.home.verbs.restart(self.current_task)

    def action_skip(self) -> None:
        self.home.verbs.skip(self.current_task)

    def action_approve(self) -> None:
        self.home.verbs.approve(self.current_task)

    def action_note(self) -> None:
        self.home.verbs.note(self.current_task)

    def action_decision(self) -> None:
        self.home.verbs.note(self.current_task, decision=True)

    def action_claim(self) -> None:
        self.home.verbs.claim(self.current_task)

    def action_verify(self) -> None:
        self.home.verbs.verify(self.current_task)

    def action_undo(self) -> None:
        self.home.verbs.undo()

    def action_deeds(self) -> None:
        self.home.open_deeds()

    def action_probe(self) -> None:
        self.home.verbs.probe(self.current_role)

    def action_bind(self) -> None:
        self.home.verbs.bind(self.current_role)

    def action_reconcile(self) -> None:
        self.home.verbs.reconcile()

    def action_shell(self) -> None:
        self.home.verbs.shell(self.current_role)

    def action_copy(self) -> None:
        under_way = self.home.deeds.under_way
        command = under_way.command if under_way is not None else self.done or self.suggested()
        self.home.voice.copy(command)

    def action_copy_output(self) -> None:
        self.home.voice.tell("No log is shown here; 3 opens it.")

    # --- elsewhere ----------------------------------------------------------------------------

    def action_place(self, place: str) -> None:
        self.home.ways.go(place)

    def action_trouble(self) -> None:
        self.home.ways.go("attention")

    def action_follow(self) -> None:
        self.home.voice.tell("No log is shown here; 3 opens it.")

    def action_stream(self) -> None:
        self.home.voice.tell("No log is shown here; 3 opens it.")

    def action_help(self) -> None:
        self.home.open_help()

    def action_palette(self) -> None:
        self.app.action_command_palette()
