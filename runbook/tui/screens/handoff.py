"""The brief as the next operator will read it, and what can still be added to it."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text

from runbook.tui import format as fmt
from runbook.tui.dialogs import AskScreen
from runbook.tui.keymap import bindings, of_place
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.widgets.text_pane import TextPane

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widget import Widget

    from runbook.tui.describe import Looks
    from runbook.tui.ports import ServicePort
    from state.model import Task

TOKENS_PER_CHARACTER = 0.28
"""Rough, for English with names and numbers in it."""


class HandoffScreen(PlaceScreen):
    """Notes and decisions written here are about the run as a whole."""

    PLACE = "handoff"
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(of_place("handoff"))]
    AUTO_FOCUS = "#page"

    def __init__(self) -> None:
        super().__init__()
        self.page = TextPane(id="page", text_id="page-text")
        self._text = ""
        self._revision = -1

    @property
    def current_task(self) -> Task | None:
        """Words written here are about the run."""
        return None

    def body(self) -> ComposeResult:
        yield self.page

    def panes(self) -> Iterable[Widget]:
        return (self.page,)

    def own_keys(self) -> list[str]:
        acts = [] if self.home.read_only else ["note", "decision", "push"]
        return [*acts, "copy_output", "back"]

    def draw_body(self) -> None:
        revision = self.home.view.snapshot.revision
        if revision != self._revision:
            self._revision = revision
            self.home.bridge.look("brief", lambda service: service.brief(), self._take)
        looks = self.home.looks
        tokens = round(len(self._text) * TOKENS_PER_CHARACTER, -2)
        self.page.entitle(
            Text(
                f"Brief at revision {revision}, about {tokens:,.0f} tokens"
                if self._text
                else "Brief"
            )
        )
        self.page.show(brief_text(self._text, looks) if self._text else Text("Reading ..."))

    def _take(self, text: str) -> None:
        self._text = text
        self.draw_body()

    def action_copy_output(self) -> None:
        self.home.copy_to_clipboard(self._text)
        self.home.voice.tell("Copied the whole brief.")

    def action_push(self) -> None:
        """Where to; then off it goes."""
        if self.home.verbs.refused("push", None):
            return
        self.home.push_screen(
            AskScreen(
                "Push the state to where?",
                "An s3:// address or a file, so that another machine can go on from it. A store "
                "that somebody else wrote to since is refused.",
                hint="empty: where it went last",
            ),
            self._push,
        )

    def _push(self, where: str | None) -> None:
        if where is None:
            return
        command = f"runbook push {shlex.quote(where)}" if where else "runbook push"
        self.home.verbs.send(command, lambda service: _push(service, where), then=self._pushed)

    def _pushed(self, pushed: Any) -> None:
        self.home.voice.tell(f"{pushed.where} has revision {pushed.revision}.")


def _push(service: ServicePort, where: str) -> Any:
    from runbook.sharing.place import choose

    options: dict[str, str | None] = {"endpoint": None, "region": None, "addressing": None}
    return service.push(choose(where or None, options, service.workspace))


MARKED = re.compile(r"(`[^`]+`|\*\*[^*]+\*\*)")


def brief_text(text: str, looks: Looks) -> Text:
    """Headings and bold words stand out, code is inked; nothing else of Markdown is interpreted."""
    inks, out = looks.inks, Text()
    for line in text.splitlines():
        if line.startswith("#"):
            out.append(fmt.clean(line.strip("# ")), inks.strong)
        else:
            for piece in MARKED.split(line):
                if piece.startswith("`"):
                    out.append(fmt.clean(piece.strip("`")), inks.accent)
                elif piece.startswith("**"):
                    out.append(fmt.clean(piece.strip("*")), inks.strong)
                else:
                    out.append(fmt.clean(piece), inks.text)
        out.append("\n")
    return out


SCREEN = HandoffScreen
