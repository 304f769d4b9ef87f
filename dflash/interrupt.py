"""The first signal asks to stop: finish the step, save, exit 75. The second one kills, unless a
launcher sends them: it passes on what its whole group was sent, and kills by SIGKILL."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import FrameType, TracebackType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopRequest:
    """True once a signal came, while the context is entered; `launched`: by a launcher."""

    def __init__(self, *, launched: bool = False) -> None:
        self.signal: signal.Signals | None = None
        self.at = 0.0
        """When the first came, by the monotonic clock."""
        self._launched = launched
        self._before: dict[signal.Signals, object] = {}

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self.at = self.at or time.monotonic()
        if not self._launched:
            signal.signal(number, signal.SIG_DFL)
