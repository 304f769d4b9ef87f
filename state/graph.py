"""Pure questions about the graph: cycles, order, what is ready and why not."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Protocol

from state.model import TaskKind, TaskState
from state.telling import told_state
from state.transitions import PENDING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from state.model import Need, Snapshot, Task


class Node(Protocol):
    """What the functions below look at; `Task` and `TaskDef` both have it."""

    @property
    def id(self) -> str: ...
    @property
    def needs(self) -> tuple[Need, ...]: ...
    @property
    def position(self) -> int: ...


class StatefulNode(Node, Protocol):
    @property
    def kind(self) -> TaskKind: ...
    @property
    def state(self) -> TaskState: ...
    @property
    def reason(self) -> str: ...
    @property
    def removed(self) -> bool: ...


NAMED_NEEDS = 8
"""So many are named in a reason: a thousand names would be written anew at each of their moves."""
STUCK = frozenset({TaskState.FAILED, TaskState.STALE, TaskState.ATTENTION, TaskState.GATED})
ENDED = frozenset({TaskState.DONE, TaskState.FAILED, TaskState.SKIPPED})


def find_cycle(defs: Sequence[Node]) -> list[str] | None:
    """A cycle as `[a, b, a]`, or None. Needs that name no task are left to the loader."""
    nodes = {node.id: node for node in defs}
    finished: set[str] = set()
    for start in nodes:
        path: list[str] = []
        on_path: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, False)]
        while stack:
            name, leaving = stack.pop()
            if leaving:
                path.pop()
                on_path.discard(name)
                finished.add(name)
            elif name in on_path:
                return [*path[path.index(name) :], name]
            elif name not in finished:
                path.append(name)
                on_path.add(name)
                stack.append((name, True))
                stack.extend((need.task, False) for need in nodes[name].needs if need.task in nodes)
    return None


def topological(defs: Sequence[Node]) -> list[str]:
    """Every task after what it needs; among equals the order of the file."""
    nodes = {node.id: node for node in defs}
    waits = {node.id: {need.task for need in node.needs if need.task in nodes} for node in defs}
    followers: defaultdict[str, list[Node]] = defaultdict(list)
    for name, needs in waits.items():
        for need in needs:
            followers[need].append(nodes[name])
    free = [(node.position, node.id) for node in defs if not waits[node.id]]
    heapify(free)
    order: list[str] = []
    while free:
        _, name = heappop(free)
        order.append(name)
        for node in followers[name]:
            waits[node.id].discard(name)
            if not waits[node.id]:
                heappush(free, (node.position, node.id))
    if len(order) < len(nodes):
        raise ValueError(f"the graph has a cycle: {find_cycle(defs)}")
    return order


def critical_path(defs: Sequence[Node], seconds: Mapping[str, float]) -> tuple[str, ...]:
    """The chain of needs that takes longest, in order; empty when nothing takes any time.

    Args:
        seconds: of the tasks whose time is known; others count nothing.
    """
    nodes = {node.id: node for node in defs}
    ends: dict[str, float] = {}
    before: dict[str, str | None] = {}
    for name in topological(defs):
        needs = [need.task for need in nodes[name].needs if need.task in ends]
        last = max(needs, key=lambda need: ends[need], default=None)
        before[name] = last
        ends[name] = seconds.get(name, 0.0) + (ends[last] if last is not None else 0.0)
    end = max(ends, key=lambda name: ends[name]) if ends else None
    path: list[str] = []
    while end is not None and ends[end]:
        path.append(end)
        end = before[end]
    return tuple(reversed(path))


def descendants(snapshot: Snapshot, task_id: str) -> tuple[str, ...]:
    """Everything that needs this task, directly or not, in the order of the file."""
    snapshot.task(task_id)
    children: defaultdict[str, list[str]] = defaultdict(list)
    for task in snapshot.tasks:
        for need in task.needs:
            children[need.task].append(task.id)
    found: set[str] = set()
    queue = deque(children[task_id])
    while queue:
        name = queue.popleft()
        if name not in found:
            found.add(name)
            queue.extend(children[name])
    return tuple(task.id for task in snapshot.tasks if task.id in found)


def is_met(need: Need, by: StatefulNode | None) -> bool:
    """Whether a task that has not run may run, as far as this need goes."""
    if by is None or by.removed:
        return False
    if need.condition == "any":
        return by.state in ENDED
    if by.state is TaskState.SKIPPED:
        return True
    wanted = TaskState.SERVING if by.kind is TaskKind.SERVICE else TaskState.DONE
    return by.state is wanted


def unmet(task: Node, tasks: Mapping[str, StatefulNode]) -> str:
    """Why it cannot run: the first needs that are not met, or the empty string."""
    missing: list[str] = []
    for need in task.needs:
        by = tasks.get(need.task)
        if not is_met(need, by):
            missing.append(f"{need.task}{_remark(by)}")
            if len(missing) > NAMED_NEEDS:
                missing[-1] = "others"
                break
    return f"waits for {', '.join(_folded(missing))}" if missing else ""


def _folded(missing: Sequence[str]) -> list[str]:
    """`serve[*]` for three members or more of which nothing else is to be said."""
    plain = Counter(family_of(name) for name in missing if " " not in name)
    words = (
        f"{family_of(name)}[*]" if " " not in name and plain[family_of(name)] > 2 else name
        for name in missing
    )
    return list(dict.fromkeys(words))


def _remark(by: StatefulNode | None) -> str:
    """Only what will not change by itself is worth a word (and an event)."""
    if by is None or by.removed:
        return " (not in the runbook)"
    if by.kind is TaskKind.SERVICE and by.state is TaskState.DONE:
        return " (ended; it must serve again)"
    return f" ({told_state(by)})" if by.state in STUCK else ""


def readiness(
    tasks: Sequence[StatefulNode], *, only: Collection[str] | None = None
) -> dict[str, tuple[TaskState, str]]:
    """Where each pending task belongs, and why: `blocked` with what it waits for, or `ready`."""
    by_id = {task.id: task for task in tasks}
    found: dict[str, tuple[TaskState, str]] = {}
    for task in tasks:
        if task.state in PENDING and not task.removed and (only is None or task.id in only):
            why = unmet(task, by_id)
            # A reason somebody gave for `ready` (stopped, retried) stays until it is blocked.
            kept = task.reason if task.state is TaskState.READY else ""
            found[task.id] = (TaskState.BLOCKED, why) if why else (TaskState.READY, kept)
    return found


def ready(snapshot: Snapshot) -> tuple[Task, ...]:
    """What can be started now, in the order of the file."""
    return tuple(
        task for task in snapshot.tasks if task.state is TaskState.READY and not task.removed
    )


def family_of(task_id: str) -> str:
    """The name in the file: `make` of `make[3]`, of `make@box` and of `make`."""
    return task_id.partition("[")[0].partition("@")[0]


def members(snapshot: Snapshot, name: str) -> tuple[Task, ...]:
    """The tasks a name means: the one with this id, or all of a family.

    Raises:
        UnknownTask: it means none.
    """
    if name not in snapshot.by_id:
        found = tuple(t for t in snapshot.tasks if not t.removed and family_of(t.id) == name)
        if found:
            return found
    return (snapshot.task(name),)
