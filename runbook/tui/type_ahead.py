"""Keys in order: what one does is done before the next is looked at, however fast they come.

Textual gives a key to the widget that has the focus at that moment; what the key does (a question
that opens, a line that gets the focus) takes some more messages. Of keys that came in one burst,
from quick fingers or over a slow line, those behind went to what was just being left, and were
lost.
"""

from __future__ import annotations

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
PATIENCE = 50
"""Ticks after which a key, because a widget hangs, holds the next one no more. By the clock, a
machine that stood still would look like a widget that hangs."""


class TypeAhead(App[int]):
    """Deals with one key after the other."""

    def __init__(self) -> None:
        super().__init__()
        self._typed: deque[events.Event] = deque()
        self._dealt = 0
        """The number of the key that is being dealt with, or was last."""
        self._left = 0
        """Ticks that it still has; none are left when it is done."""

    async def on_event(self, event: events.Event) -> None:
        """Keys and what is pasted wait for their turn; all else goes its way."""
        is_typed = isinstance(event, events.Key | events.Paste) and not event.is_forwarded
        at_once = isinstance(event, events.Key) and event.key in AT_ONCE
        if not is_typed or at_once:
            await super().on_event(event)
            return
        self._typed.append(event)
        await self._deal()

    def type_again(self, key: events.Key) -> None:
        """Whoever got this key has no use for it, and made room: it is the next one."""
        self._typed.appendleft(events.Key(key.key, key.character))
        self.call_later(self._deal)

    def hurry(self) -> None:
        """A tick went by."""
        self._left -= bool(self._left)
        if self._typed:
            self.call_later(self._deal)

    async def _deal(self) -> None:
        """The next key, and a walk behind it."""
        if self._left or not self._typed:
            return
        self._left = PATIENCE
        self._dealt += 1
        await super().on_event(self._typed.popleft())
        await self._walk([], WALKS, self._dealt)

    async def _walk(self, path: list[MessagePump], walks: int, key: int) -> None:
        """From whoever has the focus up to the app: each has handled what came before us."""
        while path:
            if path.pop(0).call_later(self._walk, path, walks, key):
                return
        if key != self._dealt:
            return  # it took too long: another one is being dealt with
        if not walks or not self.is_running or not self.screen_stack:
            self._left = 0
            await self._deal()
            return
        start = self.focused or self.screen
        await self._walk([*start.ancestors_with_self], walks - 1, key)
