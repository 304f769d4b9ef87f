"""Small questions. They name the object and the consequence, and a plain enter changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual import on
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from runbook.tui import format as fmt

if TYPE_CHECKING:
    from textual.app import ComposeResult


def focus(screen: ModalScreen[Any], selector: str) -> None:
    """Focus a part of a dialog; on a busy machine it may come after the dialog itself."""
    found = next(iter(screen.query(selector)), None)
    if found is None:
        screen.call_after_refresh(focus, screen, selector)
        return
    found.focus()
    if isinstance(found, Input):
        found.select_all()


class ConfirmScreen(ModalScreen[bool]):
    """Yes or no; no is the default."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape", "answer(False)", "No"),
        Binding("left,right,h,l", "app.focus_next", "Other"),
    ]

    def __init__(self, title: str, body: str, *, yes: str) -> None:
        super().__init__()
        self._question, self._body, self._yes = title, body, yes

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(fmt.text(self._question), id="dialog-title")
            yield Static(fmt.text(self._body), id="dialog-body")
            with Horizontal(id="dialog-buttons"):
                yield Button(Text(f"y  {self._yes}"), id="yes", compact=True)
                yield Button(Text("n  No"), id="no", compact=True)

    def on_mount(self) -> None:
        """Enter must be harmless."""
        focus(self, "#no")

    @on(Button.Pressed)
    def answer_by_button(self, event: Button.Pressed) -> None:
        """The button that has the focus answers."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """Answer by key."""
        self.dismiss(yes)


class AskScreen(ModalScreen[str | None]):
    """One line of text; None when put away."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(
        self, title: str, body: str, *, hint: str = "", needed: bool = False, value: str = ""
    ) -> None:
        super().__init__()
        self._question, self._body, self._hint, self._needed = title, body, hint, needed
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(fmt.text(self._question), id="dialog-title")
            yield Static(fmt.text(self._body), id="dialog-body")
            yield Input(self._value, placeholder=self._hint, id="dialog-input", compact=True)
            yield Static(Text(_KEYS), id="dialog-keys")

    def on_mount(self) -> None:
        """Write at once; what is proposed goes away with the first letter."""
        focus(self, "#dialog-input")

    @on(Input.Submitted)
    def send(self, event: Input.Submitted) -> None:
        """Answer, unless there is nothing where something is needed."""
        event.stop()
        answer = event.value.strip()
        if self._needed and not answer:
            self.query_one("#dialog-keys", Static).update(Text("A few words are needed here."))
            return
        self.dismiss(answer)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(None)


class NameScreen(ModalScreen[str | None]):
    """For what cannot be taken back: the name is typed, and where needed a reason.

    The answer is the reason (empty when none was asked for); None changes nothing.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, title: str, body: str, *, name: str, reason: bool = False) -> None:
        super().__init__()
        self._question, self._body, self._wanted, self._reason = title, body, name, reason

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(fmt.text(self._question), id="dialog-title")
            yield Static(fmt.text(self._body), id="dialog-body")
            yield Input(placeholder=f"type {self._wanted}", id="dialog-input", compact=True)
            if self._reason:
                yield Input(placeholder="why?", id="dialog-reason", compact=True)
            yield Static(Text(_KEYS), id="dialog-keys")

    def on_mount(self) -> None:
        """Write at once."""
        focus(self, "#dialog-input")

    @on(Input.Submitted)
    def send(self, event: Input.Submitted) -> None:
        """Go on to the reason, or answer when both are there."""
        event.stop()
        said = self.query_one("#dialog-keys", Static)
        if self.query_one("#dialog-input", Input).value.strip() != self._wanted:
            said.update(fmt.text(f"Type {self._wanted} to go on; esc changes nothing."))
            self.query_one("#dialog-input", Input).focus()
            return
        why = self.query_one("#dialog-reason", Input).value.strip() if self._reason else ""
        if self._reason and not why:
            said.update(Text("A few words are needed here."))
            self.query_one("#dialog-reason", Input).focus()
            return
        self.dismiss(why)

    def action_cancel(self) -> None:
        """Change nothing."""
        self.dismiss(None)


class PassphraseScreen(ModalScreen[str | None]):
    """The passphrase of a key, typed unseen and kept by nobody; None when none is given."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "Cancel")]

    def __init__(self, path: str, *, again: bool) -> None:
        super().__init__()
        self._path, self.again = path, again

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog"):
            yield Static(Text("A key is locked"), id="dialog-title")
            wrong = "That did not open it. " if self.again else ""
            said = (
                f"{wrong}{self._path} wants its passphrase. It opens the key for as long as this "
                "screen is open, and is written nowhere."
            )
            yield Static(fmt.text(said), id="dialog-body")
            yield Input(placeholder="passphrase", password=True, id="dialog-input", compact=True)
            yield Static(Text(_KEYS), id="dialog-keys")

    def on_mount(self) -> None:
        """Write at once."""
        focus(self, "#dialog-input")

    @on(Input.Submitted)
    def send(self, event: Input.Submitted) -> None:
        """An empty line is no answer."""
        event.stop()
        self.dismiss(event.value or None)

    def action_cancel(self) -> None:
        """The key stays locked."""
        self.dismiss(None)


_KEYS = "enter sends, esc leaves everything as it is"
