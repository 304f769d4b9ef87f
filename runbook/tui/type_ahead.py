"""Keys in order: what one does is done before the next is looked at, however fast they come.

Textual gives a key to the widget that has the focus at that moment; what the key does (a question
that opens, a line that gets the focus) takes some more messages. Of keys that came in one burst,
from quick fingers or over a slow line, those behind went to what was just being left, and were
lost.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from textual import events
from textual.app import App

if TYPE_CHECKING:
    from textual.message_pump import MessagePump

AT_ONCE = ("ctrl+q", "ctrl+c")
"""Whatever else is under way."""
WALKS = 3
"""Up to the app with the key, with what it sent, and with what that asked for."""
PATIENCE_S = 1.0
"""A key that takes longer, because a widget hangs, holds the next one no more."""


class TypeAhead(App[int]):
    """Deals with one key after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Event] = deque()
        self._dealing_since: float | None = None

    async def on_event(self, event: events.Event) -> None:
        """Keys and what is pasted wait for their turn; all else goes its way."""
        is_typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        at_once = isinstance(event, events.Key) and event.key in AT_ONCE
        if not is_typed or at_once:
            await super().on_event(event)
            return
        self._typed.append(event)
        since = self._dealing_since
        if since is None or time.monotonic() - since > PATIENCE_S:
            await self._deal()

    def type_again(self, key: events.Key) -> None:
        """Whoever got this key has no use for it, and made room: it is the next one."""
        self._typed.appendleft(events.Key(key.key, key.character))
        if self._dealing_since is None:
            self.call_later(self._deal)

    async def _deal(self) -> None:
        """The next key, and a walk behind it."""
        if not self._typed:
            self._dealing_since = None
            return
        self._dealing_since = began = time.monotonic()
        await super().on_event(self._typed.popleft())
        await self._walk([], WALKS, began)

    async def _walk(self, path: list[MessagePump], walks: int, began: float) -> None:
        """From whoever has the focus up to the app: each has handled what came before us."""
        while path:
            if path.pop(0).call_later(self._walk, path, walks, began):
                return
        if began != self._dealing_since:
            return  # it took too long: another key is being dealt with
        if not walks or not self.is_running or not self.screen_stack:
            await self._deal()
            return
        start = self.focused or self.screen
        await self._walk([*start.ancestors_with_self], walks - 1, began)
