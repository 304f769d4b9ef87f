"""Looking at what runs: one poll per host, and each job's report held against what we believed.

A host that does not answer changes nothing but the age of what we know.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import partial
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

from remote import Host, JobStatus, RemoteError, Unreachable
from runbook.engine import renewing, services, stall
from runbook.engine.epochs import meet
from runbook.engine.events import Info, LogGrew, Progressed
from runbook.engine.finish import evidence_of, finish, when
from runbook.engine.launching import CONTROL, launch
from runbook.engine.logs import Growth, end_of_logs, live_of, mirror
from runbook.engine.start import FOUND
from runbook.errors import CannotStart
from runbook.reasons import DIAGNOSIS, LOST
from runbook.serving.diagnosis import OUT_OF_MEMORY, diagnose
from runbook.serving.diagnosis import last_words as server_words
from runbook.steps.bench import Bench
from state import (
    Attempt,
    AttemptState,
    FailureClass,
    HostBinding,
    Snapshot,
    Task,
    TaskKind,
    TaskState,
)
from state.transitions import RUNNING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from remote.fanout import Answer, Look
    from runbook.engine.world import World

UNBORN = frozenset({AttemptState.INTENDED, AttemptState.PUBLISHED})
BEFORE_RUNNING = UNBORN | {AttemptState.STARTED}
LAST_BYTES = 4096
LONGEST_REASON = 300


def observe(world: World, snapshot: Snapshot) -> None:
    """Polls every host with live attempts and takes each attempt one step on."""
    by_role: defaultdict[str, list[tuple[Task, Attempt]]] = defaultdict(list)
    for task, attempt in live_attempts(snapshot):
        if attempt.detail.get(CONTROL):
            if not world.background.busy(attempt.id) and world.may_start:
                resume_control(world, task, attempt)
        else:
            by_role[attempt.host].append((task, attempt))
    gone = set(world.live) - {task.id for pairs in by_role.values() for task, _ in pairs}
    for task_id in gone:
        del world.live[task_id]
    wanted: dict[str, tuple[Host, list[str]]] = {}
    looks: dict[str, Look] = {}
    for role, pairs in by_role.items():
        try:
            host = world.hosts.of_role(snapshot, role)
            wanted[role] = (host, [attempt.id for _, attempt in pairs])
            looks[role] = partial(fetch, world, snapshot.host(role))
        except Unreachable as error:
            world.unreachable(role, error)
        except CannotStart as error:
            for task, _ in pairs:
                world.refuse(task, str(error), error.hint)
    for role, answer in world.fanout.poll(wanted, looks=looks).items():
        try:
            if isinstance(answer, Exception):
                raise answer
            observe_host(world, snapshot, role, by_role[role], answer)
        except RemoteError as error:  # also a root that was taken away: the others are followed
            world.unreachable(role, error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a host was asked for beside the states of its jobs, by attempt."""

    grew: Mapping[str, Sequence[Growth]]
    outs: Mapping[str, Mapping[str, Any]]
    facts: Mapping[str, Any] | None
    """Of a host that is not the one we knew."""


def fetch(
    world: World, known: HostBinding, host: Host, statuses: Mapping[str, JobStatus]
) -> Fetched:
    """Copies new output, and asks for results; in the thread of this host, which may be slow."""
    grew, outs = {}, {}
    for attempt, status in statuses.items():
        if status.state in ("running", "exited") and not world.background.busy(attempt):
            grew[attempt] = mirror(host, world.workspace, status)
            if status.state == "exited":
                outs[attempt] = host.read_out(attempt) or {}
    identity = host.last_identity
    new = identity is not None and identity.epoch != known.epoch
    facts = host.facts(look_at=[known.work]) if new else None
    return Fetched(grew=grew, outs=outs, facts=facts)


def live_attempts(snapshot: Snapshot) -> list[tuple[Task, Attempt]]:
    """The tasks that are under way, each with its newest attempt if that still moves."""
    found = []
    for task in snapshot.tasks:
        if task.state in RUNNING:
            attempt = snapshot.latest_attempt(task.id)
            if attempt is not None and attempt.state not in TERMINAL:
                found.append((task, attempt))
    return found


def observe_host(
    world: World, snapshot: Snapshot, role: str, pairs: list[tuple[Task, Attempt]], answer: Answer
) -> None:
    """What one host said of all its jobs."""
    world.reachable(snapshot, role)
    identity, fetched = answer.identity, answer.found
    known = identity is None or identity.epoch == snapshot.host(role).epoch
    if identity is not None and not known and fetched.facts is not None:
        # All tasks, also where only some are looked at: with the machine went what is done, too.
        meet(world, world.store.snapshot(), role, identity, fetched.facts)
    for task, attempt in pairs:
        if attempt.id in answer.statuses:  # it may have been asked before this one began
            advance(world, task, attempt, answer.statuses[attempt.id], answer)


def advance(world: World, task: Task, attempt: Attempt, status: JobStatus, answer: Answer) -> None:
    """One attempt, one step on."""
    host, fetched = answer.host, answer.found
    if attempt.state is AttemptState.STOPPING:
        return  # the verb that stops it, or `runner.resume_stops`, sees it through
    if world.background.busy(attempt.id):
        return  # its checks are being asked
    match status.state:
        case "absent" if attempt.state in UNBORN:
            if world.may_start:
                said = f"{task.id}: the launch had not reached the host; asked again."
                world.emit(Info(text=said))
                launch(world, task, attempt, host)
        case "published":
            if world.may_start:
                launch(world, task, attempt, host)
        case "running":
            running(world, task, attempt, status, fetched)
        case "exited" if attempt.id in fetched.outs:
            follow(world, task, status, fetched)
            exited(world, task, attempt, status, fetched.outs[attempt.id])
        case "exited":
            pass  # its checks were being asked when we looked
        case "burned":
            burned(world, task, attempt, status)
        case _:
            lost(world, task, attempt, status)


def running(
    world: World, task: Task, attempt: Attempt, status: JobStatus, fetched: Fetched
) -> None:
    """It lives: note it, copy its output, and ask a service whether it is ready."""
    if attempt.state in BEFORE_RUNNING:
        world.move_attempt(attempt, AttemptState.RUNNING)
    follow(world, task, status, fetched)
    renewing.look(world, task, attempt, status)
    if task.kind is TaskKind.SERVICE:
        services.look(world, task, attempt)
    elif task.definition.get("stall"):
        stall.look(world, task, attempt, status)


def follow(world: World, task: Task, status: JobStatus, fetched: Fetched) -> None:
    """Passes on new output and new progress."""
    before = world.live.get(task.id)
    live = live_of(status, world.now())
    if status.attempt in world.loads:
        live = replace(live, progress=world.loads[status.attempt])
    world.live[task.id] = live
    for new in fetched.grew.get(status.attempt, ()):
        world.emit(
            LogGrew(
                task=task.id, attempt=status.attempt, stream=new.stream, path=new.path,
                size=new.size,
            )
        )  # fmt: skip
    if status.progress and (before is None or before.progress != status.progress):
        world.emit(Progressed(task=task.id, progress=status.progress))


def exited(
    world: World, task: Task, attempt: Attempt, status: JobStatus, out: Mapping[str, Any]
) -> None:
    """It ended by itself. For a service that is always a failure: it was to go on serving."""
    cls = FailureClass(status.cls or "exit")
    service = task.kind is TaskKind.SERVICE
    if service and cls is FailureClass.OK:
        cls = FailureClass.EXIT
    # A bench that found nothing sound repeats what its servers said.
    benched = task.step == Bench.name and cls is not FailureClass.OK
    log = end_of_logs(world.workspace, attempt.id) if service or benched else ""
    why = diagnose(log)
    if service and why is not None and why.kind in OUT_OF_MEMORY:
        cls = FailureClass.OOM
    if service:
        last = why.said if why else server_words(log)
    else:
        last = last_words(world, status)
        if why is not None:
            last = sentences(f"{why.cause}. Next: {why.next}", last)
    if service and why is None and status.signal == SIGKILL:
        last = "killed from outside, by a person or, when memory is short, by the kernel (`dmesg`)"
    finish(
        world,
        task.id,
        attempt.id,
        cls=cls,
        reason=why_ended(status, service=service, last=last),
        out=out,
        evidence={**evidence_of(status), **({DIAGNOSIS: asdict(why)} if why else {})},
        exit_code=status.exit_code,
        signal=status.signal,
        **when(world, task, attempt, status),
    )


def last_words(world: World, status: JobStatus) -> str:
    """The last line that the job wrote to its error stream, or else to its output."""
    for stream in ("err", "out"):
        path = world.workspace.log(status.attempt, stream)
        if path.exists():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_BYTES))
                lines = file.read().decode("utf-8", "replace").split("\n")
            said = [line.rsplit("\r", 1)[-1] for line in lines if line.strip()]
            if said:
                # Our programs put the next step on an indented line below what went wrong.
                both = said[-2:] if said[-1][:1].isspace() else said[-1:]
                told = [" ".join(line.split()) for line in both]
                return sentences(*told)[:LONGEST_REASON]
    return ""


def sentences(*told: str) -> str:
    """One after the other, each with an end."""
    *before, last = told
    return " ".join(
        [line if line.endswith((".", "!", "?", ":")) else f"{line}." for line in before] + [last]
    )


def why_ended(status: JobStatus, *, service: bool, last: str = "") -> str:
    """How a job ended, in words; nothing for one that ended well."""
    if status.cls == "ok" and not service:
        return ""
    how = f"exit code {status.exit_code}"
    if status.signal:
        how = f"signal {status.signal}"
    if status.cls not in (None, "ok", "exit", "signal"):
        how = f"{status.cls} ({how})"
    if status.cls == "never_started":
        return f"could not be started: {status.reason}"
    ended = "the server ended" if service else "ended"
    return f"{ended} with {how}" + (f": {last}" if last else "")


def burned(world: World, task: Task, attempt: Attempt, status: JobStatus) -> None:
    """It was settled that this attempt never starts."""
    world.move(
        task,
        TaskState.READY if task.state in (TaskState.ACTIVE, TaskState.STARTING) else task.state,
        reason="the attempt was burned before it started",
        attempt=attempt,
        attempt_to=AttemptState.NEVER_STARTED,
        cls=FailureClass.NEVER_STARTED,
        evidence=evidence_of(status),
    )


def lost(world: World, task: Task, attempt: Attempt, status: JobStatus) -> None:
    """No outcome can be known. A person decides, or decided beforehand by a retry policy."""
    cls = FailureClass(status.cls or "lost_evidence_gone")
    world.move(
        task,
        TaskState.ATTENTION,
        reason=f"{LOST}{cls.value.removeprefix('lost_')}): {status.reason}",
        attempt=attempt,
        attempt_to=AttemptState.LOST,
        cls=cls,
        evidence=evidence_of(status),
    )


def resume_control(world: World, task: Task, attempt: Attempt) -> None:
    """An action whose engine ended: it acted and only its checks are left, or it is repeated."""
    found = attempt.evidence.get(FOUND)
    if attempt.state is not AttemptState.COLLECTING or found is None:
        abandon_control(world, task, attempt)
        return
    finish(
        world,
        task.id,
        attempt.id,
        cls=FailureClass.OK if found.get("ok") else FailureClass.EXIT,
        reason=str(found.get("message", "")),
        out=found.get("out") or {},
        evidence={},
    )


def abandon_control(world: World, task: Task, attempt: Attempt) -> None:
    """An action on the operator's side whose engine is gone: we hold its lease, so it is over.

    These actions are safe to repeat, so the task simply becomes ready again.
    """
    with world.store.write(lease=world.lease) as tx:
        tx.move_attempt(
            attempt.id,
            AttemptState.LOST,
            expect={attempt.state},
            cls=FailureClass.LOST_SUPERVISOR_DIED,
            evidence={"why": "the engine that ran this action ended before it did"},
        )
        tx.move_task(
            task.id,
            TaskState.ATTENTION,
            expect={task.state},
            reason="the engine that ran it is gone",
        )
        tx.move_task(
            task.id, TaskState.READY, expect={TaskState.ATTENTION}, reason="repeated after a break"
        )
    world.announce(task, TaskState.READY, "repeated after a break")
