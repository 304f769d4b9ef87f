"""What the terminal interface needs of the service. The service matches it structurally."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping

    from runbook.engine.events import Listener
    from runbook.verbs.checking import Verified
    from runbook.verbs.logs import Copied
    from runbook.views import Checkpoint, RunResult, View
    from runbook.workspace import Workspace
    from state.model import Event, HostBinding


class ReaderPort(Protocol):
    """One open workspace, only looked at: what the first screen needs, and quick to load."""

    workspace: Workspace

    @property
    def actor(self) -> str:
        """Who acts."""

    def view(self) -> View:
        """Everything a screen shows, from one revision."""

    def changed(self) -> bool:
        """Whether somebody wrote since the last call."""

    def close(self) -> None:
        """Let go of the database."""


class ServicePort(ReaderPort, Protocol):
    """One open workspace, used by the thread that opened it and by no other."""

    def run(
        self,
        *,
        until: str | None = None,
        only: Collection[str] = (),
        stop_event: threading.Event | None = None,
        listen: Listener = ...,
    ) -> RunResult:
        """Advance the graph until a gate, a failure or the end. Blocks."""

    def stop(self, task: str) -> Any:
        """Stop the running attempt of a task and verify that it is gone."""

    def restart(self, task: str) -> Any:
        """Have a server drained, stopped and started again by whoever advances the graph."""

    def retry(self, task: str, *, reason: str = "", below: bool = False) -> Any:
        """Make a failed task ready for a new attempt; a done one with a reason; all below it."""

    def supersede(self, task: str, *, reason: str) -> Any:
        """Give a lost attempt up, for a reason, so that a new one may begin."""

    def skip(self, task: str, reason: str) -> Any:
        """Leave a task out, for a reason."""

    def approve(self, task: str, reason: str) -> Any:
        """Open a gate, as the person at the keyboard."""

    def note(self, text: str, *, task: str | None = None, decision: bool = False) -> Any:
        """Write a note, to a task or to the whole runbook."""

    def reconcile(self) -> Sequence[Any]:
        """Look at all attempts that may run, again and now."""

    def claim(self, subject: str) -> Any:
        """Keep a task, or the run, for oneself for a while."""

    def release(self, subject: str) -> Any:
        """Give a claim back."""

    def push(self, place: Any) -> Any:
        """Put the state where another machine finds it."""

    def copy_logs(self, task_id: str, *, within_s: float = ...) -> Copied:
        """Fetch what a task wrote, where nobody who advances the graph copies it."""

    def verify(self, task_ids: Collection[str] = ()) -> Verified:
        """Run the recorded checks of done tasks again."""

    def bind(self, role: str, binding: HostBinding, *, accept_fingerprint: str = "") -> Any:
        """Put a machine behind a role; it is met before anything changes."""

    def probe(self, role: str) -> Any:
        """Ask a machine for its facts and record them."""

    def audit(self, task: str) -> Mapping[str, Any]:
        """What an audit wrote on its host: its report and its samples."""

    def checkpoints(self, task: str) -> Sequence[Checkpoint]:
        """The checkpoints of a training run, as they lie on its host."""

    def events(
        self, *, after: int = 0, limit: int = 1000, task: str | None = None
    ) -> Sequence[Event]:
        """Facts in the order in which they were recorded."""

    def brief(self) -> str:
        """The hand-off text."""

    def plan_task(self, task: str) -> Sequence[str]:
        """What a task will do, in lines."""


Opener = Callable[[], ServicePort]
"""Opens the workspace anew: each thread has its own connection."""
ReaderOpener = Callable[[], ReaderPort]
"""The same for looking alone."""
