"""From a task in the graph to what its step will do: references put in, arguments validated."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from runbook.bundle import bundle_files
from runbook.engine.events import Info
from runbook.errors import CannotStart
from runbook.plan.references import ReferenceUnresolved, resolve
from runbook.steps import STEP_TYPES
from runbook.steps.base import StepContext, StepPlan, StopAnswer
from state import Snapshot, Task, UnknownHost

if TYPE_CHECKING:
    from remote import Host
    from runbook.engine.world import World

StopTask = Callable[[str], StopAnswer]


class Foreseen(Mapping[str, Mapping[str, Any]]):
    """Results as far as they are known; any other stands as the reference that it will replace."""

    def __init__(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        self._known = dict(known)

    def learn(self, task: str, out: Mapping[str, Any]) -> None:
        """What a task will give, as its plan says."""
        self._known.setdefault(task, out)

    def __getitem__(self, task: str) -> Mapping[str, Any]:
        return _OutOf(task, self._known.get(task, {}))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


class _OutOf(dict[str, Any]):
    def __init__(self, task: str, known: Mapping[str, Any]) -> None:
        super().__init__(known)
        self._task = task

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return f"${{task.{self._task}.out.{key}}}"


def make_context(
    world: World, snapshot: Snapshot, task: Task, *, host: Host | None, stop_task: StopTask
) -> StepContext:
    """What the step of this task gets to see."""
    try:
        binding = snapshot.host(task.role) if task.role else None
    except UnknownHost:
        binding = None

    def ship(name: str) -> str:
        if host is None:
            raise CannotStart(f"{task.id}: nothing can be shipped without a host.")
        return host.ship(bundle_files(name), name=name)

    return StepContext(
        host=host,
        host_name=task.role or "",
        root=at_home(binding.root, binding.facts) if binding else "",
        work=at_home(binding.work, binding.facts) if binding else "",
        workspace=world.workspace.root,
        task_id=task.id,
        facts=binding.facts if binding else {},
        ship=ship,
        stop_task=stop_task,
        outs={other.id: other.out for other in snapshot.tasks if other.out},
        log=lambda text: world.emit(Info(text=text)),
        host_kind=binding.kind if binding else "local",
    )


def at_home(folder: str, facts: Mapping[str, Any]) -> str:
    """With the home of the host's user in it: a job's words pass through no shell there."""
    home = facts.get("home")
    known = isinstance(home, str) and home.startswith("/")
    return f"{str(home).rstrip('/')}{folder[1:]}" if known and folder[:2] in ("~", "~/") else folder


def plan_task(task: Task, context: StepContext) -> StepPlan:
    """What the task will do on its host, with the checks of the runbook file on top of the step's.

    Raises:
        CannotStart: an argument refers to something unknown, or has the wrong type.
    """
    step = STEP_TYPES[task.step]
    try:
        definition = _resolved(task, context)
        plan = step.plan_raw(definition.get("with") or {}, context)
    except ReferenceUnresolved as error:
        raise CannotStart(f"{task.id}: {error}", hint=error.hint) from error
    except ValidationError as error:
        hint = f"Change `with` of {task.id} in runbook.yaml; `runbook init` takes it over."
        raise CannotStart(f"{task.id}: {_first(error)}", hint=hint) from error
    return _with_checks(plan, definition)


def _resolved(task: Task, context: StepContext) -> Mapping[str, Any]:
    wanted = {key: task.definition.get(key) for key in ("with", "done_when", "ready_when")}
    resolved: Mapping[str, Any] = resolve(
        wanted,
        root=context.root,
        work=context.work,
        workspace=str(context.workspace),
        outs=context.outs,
    )
    return resolved


def _with_checks(plan: StepPlan, definition: Mapping[str, Any]) -> StepPlan:
    return StepPlan(
        **{
            **{name: getattr(plan, name) for name in StepPlan.__dataclass_fields__},
            "done_when": (*plan.done_when, *(definition.get("done_when") or ())),
            "ready_when": (*plan.ready_when, *(definition.get("ready_when") or ())),
        }
    )


def _first(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    where = ".".join(str(part) for part in first["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"with.{where}: {first['msg']}, found {first.get('input')!r}{more}"
