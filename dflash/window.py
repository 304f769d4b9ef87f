"""How many requests one server has at a time, learned from what it does with them. Pure.

SGLang says how many requests run and how many wait. Then the window follows the waiting line: while
nobody waits the server could do more, and a short line (an eighth of what runs) is all it needs so
that no place in its batch stays free. The window grows by half until the first request waits, then
by small steps, and what waits beyond the short line is taken back at once.

Other servers tell nothing. Then throughput decides: after every full round of answers, tokens a
second are compared with those of the smaller window; a step that brought nothing is taken back, and
tried again some rounds later. An answer of "too busy" (503, 429) cuts the window in either case.
"""

from __future__ import annotations

from dataclasses import dataclass

CUT = 0.7
RAMP = 1.5
LINE = 8
"""One waiting request to so many running ones is the line that is wanted."""
GAIN = 1.03
HOLD_ROUNDS = 8
FEWEST = 4
"""Answers in a round; fewer say nothing about speed."""


@dataclass(slots=True, kw_only=True)
class Window:
    """The limit of one server, between 1 and `ceiling`."""

    limit: int
    ceiling: int
    _ramping: bool = True
    _told: bool = False  # the server says what waits
    _cut_at: float = float("-inf")
    # The round that is being counted, and what the smaller window before it brought.
    _began: float | None = None
    _settling: int = 0
    _answers: int = 0
    _tokens: int = 0
    _before: tuple[int, float] | None = None
    _hold: int = 0

    def overloaded(self, *, sent: float, now: float) -> None:
        """The server turned a request away. Those sent before the last cut tell nothing new."""
        if sent <= self._cut_at:
            return
        self._cut_at, self._ramping = now, False
        self._before, self._hold = None, HOLD_ROUNDS
        self._set(int(self.limit * CUT))

    def load(self, *, running: int, waiting: int, ours: int) -> None:
        """What the server says it has, `ours` of it from here."""
        self._told = True
        line = max(1, running // LINE)
        if waiting > line:
            self._ramping = False
            self._set(min(self.limit, ours - (waiting - line)))
        elif waiting == 0 and ours >= self.limit:
            self._grow()

    def answered(self, *, tokens: int, now: float, full: bool) -> None:
        """One answer, and whether the window was full when it came."""
        if self._told:
            return
        if not full or self._began is None:
            self._start_round(now)
            return
        self._answers += 1
        self._tokens += tokens
        if self._settling:
            self._settling -= 1
            if not self._settling:
                self._start_round(now)
        elif self._answers >= max(FEWEST, self.limit) and now > self._began:
            self._judge(self._tokens / (now - self._began))
            self._start_round(now)

    def forget(self) -> None:
        """The server was away; what it could do before is no promise."""
        self._ramping = True
        self._told, self._began, self._before, self._hold = False, None, None, 0

    def _judge(self, rate: float) -> None:
        if self._before is not None:
            smaller, before = self._before
            self._before = None
            if rate < before * GAIN:
                self._ramping, self._hold = False, HOLD_ROUNDS
                self._set(smaller)
                return
        if self._hold:
            self._hold -= 1
            return
        limit = self.limit
        self._grow()
        if self.limit != limit:
            self._before = (limit, rate)

    def _grow(self) -> None:
        step = int(self.limit * (RAMP - 1)) if self._ramping else self.limit // 16
        self._set(self.limit + max(1, step))

    def _set(self, limit: int) -> None:
        limit = max(1, min(limit, self.ceiling))
        if limit != self.limit:
            # What comes next was mostly sent under the old limit: it is not counted.
            self.limit, self._settling, self._answers = limit, limit, 0

    def _start_round(self, now: float) -> None:
        self._began, self._answers, self._tokens = now, 0, 0
