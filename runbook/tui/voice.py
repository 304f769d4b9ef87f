"""What is said to the person: one line at a time, and what goes to the clipboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runbook.errors import explain
from runbook.report import located
from runbook.tui import format as fmt

if TYPE_CHECKING:
    from runbook.tui.app import RunbookApp
    from runbook.tui.widgets.bars import MessageBar
    from runbook.tui.widgets.log_view import LogView


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The last thing said to the person."""

    text: str
    hint: str = ""
    problem: bool = False
    about: str = ""
    """`run` for how a run ended: the next run makes it old."""
    stays: bool = False
    """It is no problem, and yet worth staying until it was read."""


class Voice:
    """Speaks on the message line of the place in front."""

    def __init__(self, app: RunbookApp) -> None:
        self._app = app
        self._said: Said | None = None
        self._under: Said | None = None
        """A problem that nobody put away yet, while the answer to a key lies over it."""

    def tell(
        self,
        text: str,
        *,
        hint: str = "",
        problem: bool = False,
        about: str = "",
        stays: bool = False,
    ) -> None:
        """One line for the person; a problem stays until it is put away.

        The answer to a key lies over it for a while: a key that says nothing seems broken.
        """
        if problem:
            self._under = None
        elif self._said is not None and self._said.problem:
            self._under = self._said
        self._said = Said(text=text, hint=hint, problem=problem, about=about, stays=stays)
        self.say_on(self._app.place.message)

    def news(self, text: str) -> None:
        """What nobody asked for: it hides no problem."""
        if self._under is None and not (self._said is not None and self._said.problem):
            self.tell(text)

    def problem(self, error: Exception) -> None:
        """Say an error."""
        known = explain(error)
        text, hint = (known.message, known.hint) if known is not None else (str(error), "")
        self.tell(text or type(error).__name__, hint=hint, problem=True)

    def say_on(self, bar: MessageBar) -> None:
        """Show on this bar what was said last."""
        if self._said is None:
            bar.clear()
        elif bar.said_last is not self._said:
            bar.say(self._said, self._app.looks, faded=self._forget)

    def _forget(self, said: Said) -> None:
        if self._said is said:
            self.hush()

    def hush(self, *, about: str = "") -> bool:
        """Put the message away (only one about this, if given); whether there was one.

        What lay under it is shown again.
        """
        if about and self._under is not None and self._under.about == about:
            self._under = None
        if self._said is None or (about and self._said.about != about):
            return False
        self._said, self._under = self._under, None
        self.say_on(self._app.place.message)
        return True

    def clear(self) -> None:
        """Put everything away."""
        self._said = self._under = None
        self._app.place.message.clear()

    def did(self, command: str, *, pending: bool = False) -> None:
        """Show the command that does the same; news about a key before it is old."""
        if self._said is not None and not (self._said.problem or self._said.stays):
            self.hush()
        self._app.place.said(command, pending=pending)

    def copy(self, text: str) -> None:
        """A command to the clipboard, as it works from where the screen was opened.

        By the terminal (OSC 52), so over SSH too.
        """
        whole = located(text)
        self._app.copy_to_clipboard(whole)
        self.tell(f"Copied: {fmt.clean(whole, most=200)}")

    def copy_lines(self, log: LogView) -> None:
        """The visible lines of a log to the clipboard."""
        lines = log.visible_lines()
        self._app.copy_to_clipboard("\n".join(lines) + "\n" if lines else "")
        self.tell(f"Copied {len(lines)} line{'' if len(lines) == 1 else 's'} of the log.")
