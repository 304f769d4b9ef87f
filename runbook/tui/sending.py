"""The way of a key to the service: refused with a reason, or asked first, then sent off."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remote.passphrases import ask_anew
from runbook.tui.applies import refusal
from runbook.tui.deeds import DONE

if TYPE_CHECKING:
    from runbook.tui.app import RunbookApp
    from runbook.tui.bridge import Broke, Call, Then
    from runbook.tui.deeds import Undo
    from runbook.tui.dialogs import NameScreen
    from state.model import Task


class Sender:
    """What all verbs share."""

    def __init__(self, app: RunbookApp) -> None:
        self._app = app

    def _where(self, task: Task) -> str:
        attempt = self._app.view.snapshot.latest_attempt(task.id)
        return attempt.host if attempt is not None else task.role or "its host"

    def refused(self, verb: str, task: Task | None) -> bool:
        """Whether it does not apply; then the person was told why."""
        why = refusal(verb, task, read_only=self._app.read_only)
        if why:
            self._app.voice.tell(why)
        return bool(why)

    def _after(
        self, screen: NameScreen, command: str, call: Call, *, then: Then | None = None
    ) -> None:
        self._app.push_screen(
            screen, lambda yes: None if yes is None else self.send(command, call, then=then)
        )

    def send(
        self, command: str, call: Call, *, then: Then | None = None, undo: Undo | None = None
    ) -> None:
        """Off to the service; it is listed with what came of it."""
        deed = self._app.deeds.begin(command, self._app.now(), undo=undo)

        def carried(answer: Any) -> None:
            deed.outcome = DONE
            if then is not None:
                then(answer)

        def broke(fact: Broke) -> None:
            deed.outcome = fact.text

        ask_anew()
        self._app.voice.did(command, pending=True)
        self._app.bridge.ask(command, call, then=carried, otherwise=broke)
