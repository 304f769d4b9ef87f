"""What another workspace of the same state ran on a host: asked before anything is committed.

Two copies of one state share the jobs of their hosts. The host's fence lets a task start once; that
another copy started it is found out before an attempt is recorded here, so that the two histories
do not part and the other one can still be pulled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.errors import CannotStart, Exit
from state import AttemptState, TaskState

if TYPE_CHECKING:
    from remote import Host, TaskOwner
    from runbook.engine.world import World
    from runbook.workspace import Workspace
    from state import Snapshot, Task


class RunElsewhere(CannotStart):
    """Another copy of this state ran the task, or runs it: this one is behind."""

    exit_code = Exit.CONFLICT


NOT_STARTED = frozenset({TaskState.BLOCKED, TaskState.READY})
"""By this state; another copy may be further."""
MEMBER_MARKS = str.maketrans({"[": ".", "]": None, "@": ".", ",": "."})
GIVEN_UP = "given_up:"
"""Prefix of the keys, by task, under which is kept which attempt of another workspace a person gave
up: the task is started although it was started there."""
CURE = (
    "`runbook pull` takes over what it came to, once it was pushed from there. "
    '`runbook supersede {task} --reason "..."` does the work a second time.'
)


def host_name_of(task_id: str) -> str:
    """The task's name in folders and variables of the host: `make[3]` is `make.3` there."""
    return task_id.translate(MEMBER_MARKS)


def may_have_run(workspace: Workspace, snapshot: Snapshot, task: Task) -> bool:
    """Whether another copy may have started it: of a state that was shared, or met another."""
    latest = snapshot.latest_attempt(task.id)
    refused = latest is not None and latest.state is AttemptState.NEVER_STARTED
    if task.state in NOT_STARTED:
        return refused or workspace.share_file.exists()
    return task.state is TaskState.ATTENTION and refused


def foreign_owner(snapshot: Snapshot, task: Task, host: Host) -> TaskOwner | None:
    """Who owns the task on its host, if that is no attempt that this state knows."""
    owner = host.owner(host_name_of(task.id))
    ours = {attempt.id for attempt in snapshot.attempts_of(task.id)}
    return None if owner is None or owner.attempt in ours else owner


def require_ours(world: World, snapshot: Snapshot, task: Task, host: Host) -> int | None:
    """The generation that a new attempt must have at least; None when nobody else counted.

    Raises:
        RunElsewhere: another workspace runs the task, or ran it.
    """
    if not may_have_run(world.workspace, snapshot, task):
        return None
    owner = foreign_owner(snapshot, task, host)
    if owner is None:
        return None
    if snapshot.meta.extra.get(GIVEN_UP + task.id) == owner.attempt:
        return owner.generation + 1
    raise RunElsewhere(told(task.id, owner), hint=CURE.format(task=task.id))


def told(task: str, owner: TaskOwner) -> str:
    """`a` was run by another workspace (ann@laptop): attempt 01M8 ended ok at 12:57 UTC."""
    status = owner.status
    who = f"by another workspace ({owner.by})" if owner.by else "by another workspace"
    how = {
        "exited": f"ended {status.cls} at {_clock(status.ended_at)}",
        "running": f"runs since {_clock(status.started_at or owner.at)}",
        "published": "is about to start",
        "burned": "never started",
        "absent": "left nothing on the host",
        "lost": f"was lost ({status.reason})",
    }[status.state]
    verb = "is run" if status.state in ("running", "published") else "was run"
    return f"`{task}` {verb} {who}: attempt {owner.attempt} {how}."


def _clock(moment: str | None) -> str:
    return f"{moment[:10]} {moment[11:16]} UTC" if moment else "a time not told"
