"""What a runbook file means: each task by itself, and the graph as a whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from runbook.plan.names import Names
from runbook.plan.problems import listed
from runbook.plan.references import Reference, references, texts
from runbook.plan.shape import EXACT, NEVER_RETRIED, RETRYABLE, LikeFile, TaskFile
from runbook.plan.validate import validated
from runbook.steps import STEP_TYPES
from runbook.steps.checks import CHECKS
from state.graph import find_cycle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runbook.plan.model import PlannedTask
    from runbook.plan.yaml_reader import At


@dataclass(slots=True)
class Judging(Names):
    """Records everything that is wrong, once for a family."""

    def _judge_tasks(self, data: Mapping[str, Any], raw_tasks: Mapping[str, Any]) -> None:
        judged: set[str] = set()
        for name, task in self.tasks.items():
            family = self.members[name].family
            # A problem of reading it does not hide those of its meaning; of a family, tell one.
            if family in judged and family in self.wrong:
                continue
            judged.add(family)
            with self._once(family):
                self._judge_task(name, task, data, raw_tasks)
        defaults = data.get("defaults")
        if isinstance(defaults, dict) and isinstance(defaults.get("host"), str):
            where = ("defaults", "host")
            self._known_word(defaults["host"], data.get("hosts"), where, "host role")

    def _judge_task(
        self, name: str, task: TaskFile, data: Mapping[str, Any], raw_tasks: Mapping[str, Any]
    ) -> None:
        at = self._at(name)
        self._known_word(task.phase, data.get("phases"), (*at, "phase"), "phase")
        if task.host is not None:
            self._known_word(task.host, data.get("hosts"), (*at, "host"), "host role")
        for index, need in enumerate(task.needs):
            where: At = (*at, "needs", index)
            if self._known_task(need.task, where) and name in self._named(need.task):
                self.document.problem(where, f"task `{name}` needs itself")
        if isinstance(task.estimate, LikeFile):
            self._known_task(task.estimate.like, (*at, "estimate", "like"))
        self._judge_retry(task, at)
        self._judge_secrets(task, at)
        self._judge_step(name, task, at, raw_tasks)
        self.checks[name] = {
            key: tuple(self._judged(check, (*at, key, i)) for i, check in enumerate(checks))
            for key, checks in (
                ("done_when", task.done_when),
                ("ready_when", task.ready_when),
            )
        }

    def _judge_secrets(self, task: TaskFile, at: At) -> None:
        declared = self.document.data.get("secrets")
        for index, name in enumerate(task.secrets):
            self._known_word(name, declared, (*at, "secrets", index), "secret")
        if task.secrets and task.step == "manual":
            self.document.problem((*at, "secrets"), "a person gets no secrets", key=True)

    def _judge_retry(self, task: TaskFile, at: At) -> None:
        for index, word in enumerate(task.retry.on if task.retry else ()):
            where: At = (*at, "retry", "on", index)
            if word in NEVER_RETRIED:
                self.document.problem(where, f"`{word}` is never retried unchanged")
            elif not EXACT.fullmatch(word):
                self._known_word(word, dict.fromkeys(RETRYABLE), where, "failure class")

    def _judge_step(self, name: str, task: TaskFile, at: At, raw_tasks: Mapping[str, Any]) -> None:
        if not self._known_word(task.step, STEP_TYPES, (*at, "step"), "step type"):
            return
        step = STEP_TYPES[task.step]
        if step.kind == "manual" and task.host is not None:
            self.document.problem((*at, "host"), "a manual task has no host: a person does it")
        if step.needs_host and task.host is None and not self._default_host():
            role = next(iter(self.document.data.get("hosts") or ()), "ROLE")
            self.document.problem(
                at,
                f"`host` is missing: `{task.step}` runs on one; for all tasks: "
                f"`defaults: {{host: {role}}}`",
                key=True,
            )
        if task.ready_when and step.kind != "service":
            self.document.problem(
                (*at, "ready_when"), f"`{task.step}` is no service: use done_when", key=True
            )
        if task.done_when and step.kind == "service":
            self.document.problem(
                (*at, "done_when"), "a service is done when it is stopped: use ready_when", key=True
            )
        elif task.done_when and step.kind == "manual":
            self.document.problem(
                (*at, "done_when"),
                "a manual task is done when a person says so: put checks on a task after it",
                key=True,
            )
        elif task.done_when and task.host is None and not self._default_host():
            self.document.problem((*at, "done_when"), "checks run on a host: name one", key=True)
        args = validated(step.Args, task.with_, self.document, (*at, "with"))
        if args is None:
            return
        for argument, named in step.task_refs(args).items():
            every: list[str] = []
            for index, other in enumerate(named):
                where: At = (*at, "with", argument, index)
                if self._known_task(other, where):
                    every += self._named(other)
                    family = self.members[every[-1]].family if every else other
                    self._must_serve(other, raw_tasks[family], where)
            if every != list(named):
                self.args[name] = {**self.args.get(name, task.with_), argument: every}

    def _judge_limits(self, data: Mapping[str, Any]) -> None:
        limits = data.get("limits")
        per_host = limits.get("per_host") if isinstance(limits, dict) else None
        for role in per_host if isinstance(per_host, dict) else ():
            self._known_word(role, data.get("hosts"), ("limits", "per_host", role), "host role")

    def _must_serve(self, name: str, raw: Any, at: At) -> None:
        step = STEP_TYPES.get(raw.get("step", "")) if isinstance(raw, dict) else None
        if step is not None and step.kind != "service":
            self.document.problem(at, f"task `{name}` is no service (step `{step.name}`)")

    def _default_host(self) -> bool:
        defaults = self.document.data.get("defaults")
        return isinstance(defaults, dict) and bool(defaults.get("host"))

    def _judged(self, check: Mapping[str, Any], at: At) -> Mapping[str, Any]:
        """A check as the host takes it: `10m` in seconds, `4GiB` in bytes."""
        if len(check) != 1:
            self.document.problem(at, f"a check has one key, its name; found: {listed(check)}")
            return check
        ((name, args),) = check.items()
        if not self._known_word(name, CHECKS, (*at, name), "check"):
            return check
        found = validated(CHECKS[name], {} if args is None else args, self.document, (*at, name))
        # One that still has a reference among its numbers stays as it was written.
        return check if found is None else {name: found.model_dump(exclude_unset=True, mode="json")}

    def _judge_graph(self, planned: tuple[PlannedTask, ...]) -> None:
        cycle = find_cycle([task.to_task_def(position) for position, task in enumerate(planned)])
        if cycle is not None:
            at: At = (*self._at(cycle[0]), "needs")
            self.document.problem(at, f"the needs go in a circle: {' -> '.join(cycle)}", key=True)
            return
        needs = {task.id: [need.task for need in task.needs] for task in planned}
        for task in planned:
            before: set[str] | None = None
            for part, value in (
                ("with", task.args),
                ("done_when", task.done_when),
                ("ready_when", task.ready_when),
            ):
                for inner, text in texts(value):
                    for reference in references(text):
                        if reference.kind == "task":
                            before = _all_before(task.id, needs) if before is None else before
                            if reference.task not in before:
                                where = (*self._at(task.id), part, *inner)
                                self._not_before(task, reference, where)

    def _not_before(self, task: PlannedTask, reference: Reference, at: At) -> None:
        several = self.families.get(reference.task, ())
        if len(several) > 1 or several not in ((), (reference.task,)):
            self.document.problem(
                at,
                f"${{{reference.name}}}: `{reference.task}` is a family of {len(several)}; "
                f"name one, such as `{several[0]}`; alone in a list it stands for each",
            )
        elif self._known_task(reference.task, at):
            self.document.problem(
                at,
                f"${{{reference.name}}}: `{task.id}` does not need `{reference.task}`, "
                f"which may not have run by then; add it to `needs`",
            )


def _all_before(name: str, needs: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    queue = list(needs[name])
    while queue:
        task = queue.pop()
        if task not in found:
            found.add(task)
            queue.extend(needs[task])
    return found
