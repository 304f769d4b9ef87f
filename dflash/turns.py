"""What one rank does for all, while the others wait for as long as it takes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from dflash.errors import DflashError
from dflash.feed import peer_errors

if TYPE_CHECKING:
    from collections.abc import Callable

Made = TypeVar("Made")

PULSE_S = 1.0
WORKING, OVER = 1, 0


def done_by_one(work: Callable[[], Made], *, mine: bool, rank: int, group: Any = None) -> Made:
    """What `work` says on `rank` (where it is `mine`), or its error, on every rank of the group.

    The others wait from one pulse to the next, so no time limit of the group ends the work, and a
    rank that dies breaks the connections of all who wait within a pulse.
    """
    turn = _Turn(work) if mine else None
    told = torch.tensor([WORKING])
    found: list[Any] = [None, None]
    with peer_errors(f"rank {rank}" if turn is None else "the other ranks"):
        while int(told) == WORKING:
            if turn is not None:
                told[0] = WORKING if turn.goes_on() else OVER
            dist.broadcast(told, rank, group=group)
        if turn is not None:
            found = [turn.made, _in_words(turn.error)]
        dist.broadcast_object_list(found, rank, group=group)
    if turn is not None and turn.error is not None:
        raise turn.error
    if found[1] is not None:
        message, hint, code = found[1]
        error = DflashError(message, hint)
        error.exit_code = code
        raise error
    made: Made = found[0]
    return made


def _in_words(error: BaseException | None) -> tuple[str, str, int] | None:
    if error is None:
        return None
    if isinstance(error, DflashError):
        return error.message, error.hint, error.exit_code
    return f"{type(error).__name__}: {error}", "", DflashError.exit_code


class _Turn:
    """The work, in a thread: the pulses go out of the main one, which hears signals."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.made: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), name="turn", daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self.made = work()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            self.error = error

    def goes_on(self) -> bool:
        self._thread.join(PULSE_S)
        return self._thread.is_alive()
