"""What a step type is: validated arguments in, a plan out.

`plan()` has no effect on a host beyond shipping files there; the engine launches the job or calls
`run`, then judges the checks. A step knows nothing of the store, the engine or a front.
"""

from __future__ import annotations

import json
import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from pathlib import Path

Json = Any
Check = Mapping[str, Json]
"""A mapping with exactly one key, a name of `runbook.steps.checks.CHECKS`."""

Kind = Literal["once", "service", "manual"]


class StepArgs(BaseModel):
    """Arguments of a step type: the `with` of a task."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class NoHost(Exception):
    """A step asked for something that its context does not offer."""


class CheckAnswer(Protocol):
    """What a host says about one check."""

    @property
    def verdict(self) -> str: ...
    @property
    def evidence(self) -> Mapping[str, Json]: ...


class StopAnswer(Protocol):
    """What stopping a task came to."""

    @property
    def state(self) -> str: ...
    @property
    def survivors(self) -> Sequence[Mapping[str, Json]]: ...


class PullReport(Protocol):
    """What fetching a file or a tree came to."""

    @property
    def files(self) -> int: ...


class StepHost(Protocol):
    """The part of a host that a step may use."""

    def facts(self) -> Mapping[str, Json]: ...
    def check(
        self, checks: Sequence[Check], *, attempt: str | None = None, timeout: float = 60
    ) -> Sequence[CheckAnswer]: ...
    def radar(self, paths: Sequence[str]) -> Sequence[Mapping[str, Json]]: ...
    def read_file(self, path: str, limit: int) -> bytes: ...
    def pull(self, remote: str, local: Path) -> PullReport: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """All that a step gets to see."""

    host: StepHost | None
    """None for a task without a host."""
    host_name: str
    root: str
    work: str
    workspace: Path
    task_id: str
    facts: Mapping[str, Json]
    ship: Callable[[str], str]
    """Puts a bundle (`runbook.bundle`) on the host and returns its folder there."""
    stop_task: Callable[[str], StopAnswer]
    outs: Mapping[str, Mapping[str, Json]]
    log: Callable[[str], None]
    host_kind: Literal["local", "ssh"] = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """A detached job: what the supervisor on the host runs."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict)
    time_limit_s: float | None = None
    ports: tuple[int, ...] = ()
    grace_s: float = 20
    grants: tuple[Mapping[str, Json], ...] = ()
    """What `runbook.grants` issues for it when it is launched; as plain values, never the keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a control action on the operator's side came to."""

    ok: bool
    out: Mapping[str, Json] = field(default_factory=dict)
    evidence: Mapping[str, Json] = field(default_factory=dict)
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What a task will do. Exactly one of `job` and `run` is set; neither for a manual step."""

    summary: tuple[str, ...]
    job: JobPlan | None = None
    run: Callable[[StepContext], Outcome] | None = None
    precheck: tuple[Check, ...] = ()
    """Must hold before the launch; nothing is started otherwise."""
    done_when: tuple[Check, ...] = ()
    """The step's own checks; those of the runbook file come on top."""
    ready_when: tuple[Check, ...] = ()
    ready_within_s: float | None = None
    """How long a service may be `starting`."""
    stagger_s: float = 0.0
    """Of a service: how long after another one on its host it is started."""
    watch: Mapping[str, Json] = field(default_factory=dict)
    """Of a service: `url`, `api` and `model` of the server, its `ports`, and under the names of
    `runbook.serving.health.Patience` how it is looked after while it serves."""
    out: Mapping[str, Json] = field(default_factory=dict)
    """What is known before it runs, for `${task.NAME.out.KEY}`; the job's own out.json wins."""


A = TypeVar("A", bound=StepArgs)


class Step(ABC, Generic[A]):
    """A step type. Stateless: one instance serves all tasks."""

    name: ClassVar[str]
    kind: ClassVar[Kind] = "once"
    needs_host: ClassVar[bool] = True
    leaves_on_host: ClassVar[bool] = True
    """Whether its results are on the machine: another one behind the role does not have them."""
    Args: type[A]

    @abstractmethod
    def plan(self, args: A, ctx: StepContext) -> StepPlan:
        """Say what will be done with `args`, as commands and checks."""

    def task_refs(self, args: A) -> Mapping[str, Sequence[str]]:
        """Tasks that an argument names, by argument: each must be a service task."""
        del args
        return {}

    def plan_raw(self, raw: Mapping[str, Json], ctx: StepContext) -> StepPlan:
        """Validate a `with` whose references are all resolved, and plan it."""
        return self.plan(parse_args(self.Args, raw), ctx)


def parse_args(model: type[A], raw: Mapping[str, Json]) -> A:
    """Strictly: no number from a text, no truth from a one. By way of JSON: lists are fine."""
    return model.model_validate_json(json.dumps(raw), strict=True)


def host_of(ctx: StepContext) -> StepHost:
    """The context's host, for a step that cannot do without."""
    if ctx.host is None:
        raise NoHost(f"{ctx.task_id}: this step type runs on a host; give the task a `host:`")
    return ctx.host


def shown(argv: Sequence[str]) -> str:
    """One command as a shell would read it; for summaries only, never to run."""
    return shlex.join(argv)
