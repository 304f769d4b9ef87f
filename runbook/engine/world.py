"""What every part of the engine works with, and the writes they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from remote import AuthRefused, HostKeyChanged, RemoteError, Unreachable, WrongAnswer
from remote.fanout import Fanout
from runbook.engine.background import Background
from runbook.engine.events import EngineEvent, Info, Listener, Problem, TaskMoved
from runbook.engine.hosts import LeftAlone
from runbook.reasons import OTHER_KEY, WRONG_ANSWER, other_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote import Host
    from runbook.engine.hosts import Hosts
    from runbook.engine.stall import Stall
    from runbook.serving.health import Watched
    from runbook.views import Live
    from runbook.workspace import Workspace
    from state import Attempt, AttemptState, Lease, Snapshot, Store, Task, TaskState


LONGEST_ANSWER = 300
"""Of a wrong one, characters that are kept."""


@dataclass(slots=True)
class World:
    """One engine's view of the workspace. Every write carries the engine's lease, if it has one."""

    workspace: Workspace
    store: Store
    hosts: Hosts
    lease: Lease | None
    listen: Listener
    live: dict[str, Live] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Tasks that could not be started in this run, and why: not tried again in a loop."""
    held: set[str] = field(default_factory=set)
    """Those of them that somebody else had claimed: tried again when the claim has ended."""
    starting_since: dict[str, float] = field(default_factory=dict)
    """When this engine first saw a service start (its own monotonic clock), by attempt."""
    next_look: dict[str, float] = field(default_factory=dict)
    """When a starting service is asked again."""
    not_before: dict[str, float] = field(default_factory=dict)
    """Tasks that are tried again after a pause, and when it ends (our own monotonic clock)."""
    stalls: dict[str, Stall] = field(default_factory=dict)
    """By attempt: the metric that is watched for standing still."""
    next_server: dict[str, float] = field(default_factory=dict)
    """By host role: when the next server may be started there (our own monotonic clock)."""
    watched: dict[str, Watched] = field(default_factory=dict)
    """By attempt: what is known of a server that serves."""
    loads: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By attempt: its load, as a progress line."""
    next_keys: dict[str, float] = field(default_factory=dict)
    """By attempt: when it is handed new keys at the earliest (our own monotonic clock)."""
    answered: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """By attempt: the progress line in which it asked for the keys that it was handed since."""
    next_garbage: dict[str, float] = field(default_factory=dict)
    """When old jobs of a machine are shrunk next (our own monotonic clock), by role."""
    shrunk: set[str] = field(default_factory=set)
    """Attempts of which this engine has asked their machine to keep less."""
    silences: dict[str, set[type[RemoteError]]] = field(default_factory=dict)
    """By host role: how it failed to answer, as far as that was told since it answered last."""
    told: set[tuple[str, ...]] = field(default_factory=set)
    """Warnings that are given once."""
    background: Background = field(default_factory=Background)
    fanout: Fanout = field(default_factory=Fanout)
    may_start: bool = True
    """False: look only; nothing is stopped or launched, not even what was on its way."""

    def emit(self, event: EngineEvent) -> None:
        """Tells the listener."""
        self.listen(event)

    def now(self) -> datetime:
        """For what is shown; nothing is decided by it."""
        return datetime.now(UTC)

    def host_of(self, snapshot: Snapshot, task: Task) -> Host:
        """The connected host of a task. Raises CannotStart or Unreachable."""
        return self.hosts.of_role(snapshot, task.role or "")

    def host_with(self, snapshot: Snapshot, attempt: Attempt) -> Host:
        """That of an attempt: where it was launched, whatever its task says since an edit."""
        return self.hosts.of_role(snapshot, attempt.host)

    def move(
        self,
        task: Task,
        to: TaskState,
        *,
        reason: str = "",
        attempt: Attempt | None = None,
        attempt_to: AttemptState | None = None,
        out: Mapping[str, Any] | None = None,
        **outcome: Any,
    ) -> None:
        """Moves a task, and its attempt with it, in one transaction; then tells the listener."""
        with self.store.write(lease=self.lease) as tx:
            if out is not None:
                tx.set_out(task.id, out)
            if attempt is not None and attempt_to is not None:
                tx.move_attempt(attempt.id, attempt_to, expect={attempt.state}, **outcome)
            tx.move_task(task.id, to, expect={task.state}, reason=reason)
        self.announce(task, to, reason, attempt)

    def announce(
        self, task: Task, to: TaskState, reason: str = "", attempt: Attempt | None = None
    ) -> None:
        """Tells the listener of a committed move."""
        seconds = None
        if attempt is not None:  # what ended while nobody looked took no longer by that
            ended = datetime.fromisoformat(attempt.ended_at) if attempt.ended_at else self.now()
            seconds = seconds_since(attempt.created_at, ended)
        self.emit(TaskMoved(task=task.id, state=to.value, reason=reason, seconds=seconds))

    def move_attempt(self, attempt: Attempt, to: AttemptState, **outcome: Any) -> None:
        """Moves an attempt alone."""
        with self.store.write(lease=self.lease) as tx:
            tx.move_attempt(attempt.id, to, expect={attempt.state}, **outcome)

    def warn_once(self, key: tuple[str, ...], text: str, hint: str = "", task: str = "") -> None:
        """A problem worth one line, however often it is seen."""
        self.tell_once(key, Problem(text=text, hint=hint, task=task or None))

    def tell_once(self, key: tuple[str, ...], event: EngineEvent) -> None:
        """An event that is passed on once, however often it is seen."""
        if key not in self.told:
            self.told.add(key)
            self.emit(event)

    def refuse(self, task: Task, text: str, hint: str = "") -> None:
        """A task cannot start as things are: said once, not tried again in this run."""
        self.refused[task.id] = text
        self.emit(Problem(text=text, hint=hint, task=task.id))

    def unreachable(self, role: str, error: RemoteError) -> None:
        """Records that a host gave no answer, or a wrong one: nothing is concluded of its jobs.

        Each kind is told once until it answers again, by every engine that meets it.
        """
        now = self.store.snapshot()
        if isinstance(error, LeftAlone) or role not in {host.role for host in now.hosts}:
            return  # a person may have forgotten it meanwhile
        self.hosts.failed(role)
        key = ""
        if isinstance(error, HostKeyChanged):
            key = f"{error.fingerprint} (pinned: {error.expected_fingerprint})"
        news = key and key != other_key(now, role)
        known = now.host(role).unreachable_since is not None
        told = self.silences.setdefault(role, set())
        if known and type(error) in told and not news:
            return
        told.add(type(error))
        wrong = isinstance(error, WrongAnswer) or not isinstance(error, Unreachable)
        with self.store.write(lease=self.lease) as tx:
            if wrong or not known:
                said = error.in_short[:LONGEST_ANSWER] if wrong else ""
                tx.set_meta(WRONG_ANSWER + role, said, unless="")
            tx.set_unreachable(role, True)
            if news:
                tx.set_meta(OTHER_KEY + role, key)
        wait = self.hosts.next_try_s(role)
        again = f"it is asked again in {wait:.0f} s, and then ever more rarely."
        hint = f"Its jobs go on; {again}"
        if isinstance(error, HostKeyChanged):
            hint = f"If it was rebuilt: `runbook host repin {role}`. Until then {again}"
        elif wrong:
            look = error.hint or "look there by hand"
            hint = f"Its jobs may go on; {look} (`runbook host shell {role}`); {again}"
        elif isinstance(error, AuthRefused) and error.hint:
            hint = f"Its jobs go on; {error.hint}; {again}"
        text = f"{role}: its jobs cannot be looked at: {error}" if wrong else str(error)
        self.emit(Problem(text=text, hint=hint))

    def silent(self, attempt: Attempt, error: Exception) -> None:
        """A look beside the loop failed: for want of an answer, or because of a mistake of ours."""
        role, task = attempt.host, attempt.task
        if isinstance(error, Unreachable):
            self.unreachable(role, error)
        elif isinstance(error, RemoteError):  # it answers, but not to this
            self.hosts.failed(role)
            key = ("look", task, type(error).__name__)
            self.warn_once(key, f"{task}: {role} cannot be asked: {error}", error.hint, task)
        else:
            raise error

    def reachable(self, snapshot: Snapshot, role: str) -> None:
        """The host answered."""
        self.hosts.answered(role)
        self.silences.pop(role, None)
        if snapshot.host(role).unreachable_since is not None:
            with self.store.write(lease=self.lease) as tx:
                tx.set_unreachable(role, False)
                for prefix in (OTHER_KEY, WRONG_ANSWER):
                    tx.set_meta(prefix + role, "", unless="")
            self.emit(Info(text=f"{role} answers again."))


def seconds_since(iso: str, now: datetime) -> float:
    """Seconds from a recorded time to now, for people to read."""
    return max(0.0, (now - datetime.fromisoformat(iso)).total_seconds())
