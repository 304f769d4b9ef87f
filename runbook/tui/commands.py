"""The palette: any task or host by name, any action by what it does."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, cast

from rich.text import Text
from textual.command import DiscoveryHit, Hit, Hits, Provider

from runbook.tui import format as fmt
from runbook.tui.applies import refusal
from runbook.tui.attention_model import roles_of
from runbook.tui.keymap import MOVE
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.tui.app import RunbookApp


class BoardCommands(Provider):
    """Tasks, hosts and actions."""

    async def discover(self) -> Hits:
        """What is offered before a letter is typed."""
        for name, about, call in self._all():
            yield DiscoveryHit(_shown(name, about), call, text=name)

    async def search(self, query: str) -> Hits:
        """What fits the letters."""
        matcher = self.matcher(query)
        for name, about, call in self._all():
            score = matcher.match(name)
            if score > 0:
                score = rank(query, name) + score / (1 + score)
                yield Hit(score, _shown(name, about), call, text=name)

    def _all(self) -> list[tuple[str, str, Callable[[], object]]]:
        app = cast("RunbookApp", self.app)
        place, view = app.place, app.view
        task = place.current_task
        found: list[tuple[str, str, Callable[[], object]]] = []
        for key in app.table.keys:
            shown = not key.scope or key.scope == place.PLACE
            applies = not refusal(key.id, task, read_only=app.read_only)
            if shown and applies and key.group != MOVE and key.id not in ("palette", "back"):
                command = key.command(task.id if task is not None else None)
                about = f"key {key.shown}" + (f", {command}" if key.cli else "")
                name = f"{key.label}: {key.help}"  # its word is what one types
                found.append((name, about, partial(place.run_action, key.action)))
        for one in view.snapshot.tasks:
            if not one.removed:
                about = f"{told_state(one)}, {fmt.clean(one.title)}"
                found.append((f"Go to {fmt.clean(one.id)}", about, partial(_go, app, one.id)))
        found += [
            (f"Host {fmt.clean(role)}", "its facts", partial(app.ways.go_to_host, role))
            for role in roles_of(view)
        ]
        found.append(("Theme", "other colours", app.action_change_theme))
        found.append(("Screenshot", "save what is seen as SVG", app.deliver_screenshot))
        return found


def rank(query: str, name: str) -> int:
    """What begins a name or a word of it comes before what stands in one, and both before letters
    that are scattered over it."""
    query, name = query.strip().casefold(), name.casefold()
    if query not in name:
        return 0
    if name.startswith(query) or name.removeprefix("go to ").startswith(query):
        return 3
    return 2 if any(word.startswith(query) for word in re.split(r"[^\w]+", name)) else 1


def _go(app: RunbookApp, task: str) -> None:
    app.ways.go_back()
    app.board.go_to(task)


def _shown(name: str, about: str) -> Text:
    """Both lines as `Text`: the palette parses bare strings, its help line too, as markup."""
    return Text.assemble(name, "\n", (fmt.clean(about), "not bold dim"))
