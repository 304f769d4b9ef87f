"""What a runbook file becomes once loaded: records with parameters put in, ready for the store."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from state.model import Need, TaskDef, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runbook.plan.shape import (
        BudgetFile,
        LikeFile,
        LimitsFile,
        ResourcesFile,
        RetryFile,
        Scalar,
        StallFile,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """A task of a loaded file: parameters put in, everything validated that can be by now."""

    id: str
    title: str
    phase: str
    role: str | None
    needs: tuple[Need, ...]
    step: str
    args: Mapping[str, Any]
    """The `with`; references to hosts and results are still in it."""
    done_when: tuple[Mapping[str, Any], ...]
    ready_when: tuple[Mapping[str, Any], ...]
    resources: ResourcesFile
    retry: RetryFile | None
    timeout_s: float | None
    gate: str | None
    kind: TaskKind
    family: str = ""
    """The task of the file that it is a member of; empty for a task without `for_each`."""
    estimate_s: float | None = None
    estimate_like: LikeFile | None = None
    stall: StallFile | None = None
    budget: BudgetFile | None = None
    secrets: tuple[str, ...] = ()

    def definition(self) -> dict[str, Any]:
        """The whole definition as JSON, as the store keeps it."""
        return {
            **self._semantics(),
            "retry": self._retry(),
            "timeout_s": self.timeout_s,
            "gate": {"ask": self.gate} if self.gate is not None else None,
            **{name: value for name, value in self._optional() if value},
        }

    def _retry(self) -> dict[str, Any] | None:
        if self.retry is None:
            return None
        pause = {"backoff_s": self.retry.backoff} if self.retry.backoff else {}
        return {"max": self.retry.max, "on": list(self.retry.on), **pause}

    def _optional(self) -> Iterator[tuple[str, Any]]:
        yield "family", self.family
        yield "estimate_s", self.estimate_s
        if self.estimate_like:
            yield "estimate_like", self.estimate_like.model_dump()
        if self.stall:
            stall = self.stall
            yield (
                "stall",
                {"metric": stall.metric, "for_s": stall.for_, "action": stall.action},
            )
        if self.budget:
            yield "budget", self.budget.limits()

    def _semantics(self) -> dict[str, Any]:
        """What its results depend on. How often to try, how long, who agrees, and every title may
        change without making done work stale."""
        return {
            "step": self.step,
            "kind": self.kind.value,
            "with": dict(self.args),
            "role": self.role,
            "needs": sorted([need.task, need.condition] for need in self.needs),
            "done_when": [dict(check) for check in self.done_when],
            "ready_when": [dict(check) for check in self.ready_when],
            "resources": list(self.resources.names()),
            **({"secrets": sorted(self.secrets)} if self.secrets else {}),
        }

    @property
    def definition_hash(self) -> str:
        """Digest of the semantic part, whatever the order of keys in the file."""
        text = json.dumps(self._semantics(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_task_def(self, position: int) -> TaskDef:
        """The record that the store takes."""
        return TaskDef(
            id=self.id,
            title=self.title,
            phase=self.phase,
            step=self.step,
            kind=self.kind,
            role=self.role,
            needs=self.needs,
            definition=self.definition(),
            definition_hash=self.definition_hash,
            position=position,
            resources=self.resources.claims(),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Runbook:
    """A valid runbook file with its parameters put in."""

    name: str
    title: str
    goal: str
    hosts: Mapping[str, str]
    """Role -> title."""
    phases: Mapping[str, str]
    params: Mapping[str, Scalar]
    """The values in force."""
    limits: LimitsFile
    budget: BudgetFile
    tasks: tuple[PlannedTask, ...]
    """In the order of the file; the members of a family one after the other."""
    secrets: Mapping[str, Mapping[str, Any]]
    """Name -> where its value is."""
    digest: str
    """sha256 of the text and the parameters in force: what a person approves."""
    text: str
    path: str

    def task_defs(self) -> tuple[TaskDef, ...]:
        """For `Tx.load_runbook`."""
        return tuple(task.to_task_def(position) for position, task in enumerate(self.tasks))
