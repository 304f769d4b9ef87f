"""What can go wrong with one request, class by class, and what each class means for the prompt and
for the server. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Mapping


class Trouble(StrEnum):
    """Why there is no answer this time. The request may succeed later, or elsewhere."""

    CONNECT = "connect"  # nobody listens there
    BUSY = "busy"  # 503, 429: its queue is full, it is warming up, it is being stopped
    GATEWAY = "gateway"  # 502, 504: something in between could not reach it
    ERROR = "error"  # 500 and the like: perhaps this prompt's doing
    TIMEOUT = "timeout"
    LOST = "lost"  # the connection ended within the request
    ABORTED = "aborted"
    SHAPE = "shape"  # 200 with something else than a completion
    WEDGED = "wedged"  # dropped here: the server's health check says that it hangs
    OVERDUE = "overdue"  # dropped here: longer than the longest answer can take
    MOVED = "moved"  # dropped here: the server is slow, or leaves the list


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What one class of trouble costs whom."""

    attempt: bool  # counts against the prompt: it did reach a server
    rest: bool = False  # the server is left alone for a while, longer each time
    shrink: bool = False  # the server gets fewer requests at a time


POLICIES: Mapping[Trouble, Policy] = {
    Trouble.CONNECT: Policy(attempt=False, rest=True),
    Trouble.BUSY: Policy(attempt=False, shrink=True),
    Trouble.GATEWAY: Policy(attempt=False, rest=True),
    Trouble.ERROR: Policy(attempt=True),
    Trouble.TIMEOUT: Policy(attempt=True, rest=True),
    Trouble.LOST: Policy(attempt=True, rest=True),
    Trouble.ABORTED: Policy(attempt=True),
    Trouble.SHAPE: Policy(attempt=True),
    Trouble.WEDGED: Policy(attempt=True, rest=True),
    Trouble.OVERDUE: Policy(attempt=True),
    Trouble.MOVED: Policy(attempt=False),
}


class Unavailable(Exception):
    """No answer this time."""

    def __init__(self, trouble: Trouble, reason: str, *, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.trouble = trouble
        self.pause = pause  # seconds that the server asked for

    @property
    def policy(self) -> Policy:
        return POLICIES[self.trouble]


class Refused(Exception):
    """The server will never answer this prompt: `kind` is too_long or bad_request."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class ServerWrong(DflashError):
    """The server does not serve what was asked for; no prompt would change that."""
