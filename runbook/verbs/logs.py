"""A task's output, fetched from its host where nobody else copies it."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote import RemoteError
from runbook.engine.logs import mirror, size_of, sizes_of
from runbook.errors import RunbookError
from runbook.reader import numbered
from runbook.verbs.base import Writer

if TYPE_CHECKING:
    from remote import Host, JobStatus

FETCH_S = 20.0
"""How long a reader is kept waiting for a host."""
GOES_ON = frozenset({"published", "running"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What came of asking a host for the output of an attempt."""

    state: str = ""
    """Of its job, in the host's words; empty when nobody could be asked."""
    problem: str = ""
    """Why the copy is not the newest; empty when it is."""
    hint: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether the job may still write."""
        return self.state in GOES_ON


class LogVerbs(Writer):
    """Copies of what jobs wrote. Nothing is recorded: whoever advances the graph does that."""

    def copy_logs(
        self, task_id: str, *, number: int | None = None, within_s: float = FETCH_S
    ) -> Copied:
        """Brings the local copy of an attempt, or the newest, up to date, or says why it is not.

        Only for output that no engine copies: see `Reader.copy_is_behind`.
        """
        snapshot = self.snapshot()
        attempt = numbered(snapshot, task_id, number)
        if attempt is None or not attempt.host:
            return Copied()
        try:
            host = self._hosts.of_role(snapshot, attempt.host)
        except (RemoteError, RunbookError) as error:
            return Copied(problem=str(error), hint=error.hint)
        # A file system or a link may hang: the thread is left behind, the reader is not.
        fetching = Fetching(host, self, attempt.id, until=time.monotonic() + within_s)
        fetching.start()
        fetching.join(within_s)
        if fetching.is_alive():
            self._hosts.failed(attempt.host)
            said = f"still on its way after {within_s:g} s" if fetching.state else "no answer"
            return Copied(state=fetching.state, problem=f"{attempt.host}: {said}")
        if isinstance(fetching.error, OSError):
            return Copied(state=fetching.state, problem=f"no copy here: {fetching.error}")
        if fetching.error is not None:
            self._hosts.failed(attempt.host)
            return Copied(problem=str(fetching.error), hint=fetching.error.hint)
        return Copied(state=fetching.state)


class Fetching(threading.Thread):
    """One look at a job, and what is new of its streams."""

    def __init__(self, host: Host, verbs: LogVerbs, attempt: str, *, until: float) -> None:
        super().__init__(name=f"logs {attempt}", daemon=True)
        self._host, self._workspace, self._attempt = host, verbs.workspace, attempt
        self._until = until
        self.state = ""
        self.error: RemoteError | OSError | None = None

    def run(self) -> None:
        """Copies until the copies are as long as the streams were, or time is up."""
        try:
            status = self._host.poll([self._attempt])[self._attempt]
            self.state = status.state
            while self._is_behind(status) and time.monotonic() < self._until:
                if not mirror(self._host, self._workspace, status):
                    break
        except (RemoteError, OSError) as error:  # the second: of the disk here
            self.error = error

    def _is_behind(self, status: JobStatus) -> bool:
        lengths = sizes_of(status).items()
        return any(
            size_of(self._workspace.log(status.attempt, name)) < size for name, size in lengths
        )
