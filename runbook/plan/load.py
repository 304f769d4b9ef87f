"""Load a runbook file: read, put parameters in, validate, and look at the graph as a whole.

Every stage records problems and goes on with what is left, so that one run names them all.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.plan.families import Member, members
from runbook.plan.model import (
    EXACT,
    NEVER_RETRIED,
    NOT_SECRETS,
    RETRYABLE,
    PlannedTask,
    Runbook,
    RunbookFile,
    Scalar,
    TaskFile,
)
from runbook.plan.problems import PlanError, Problem, listed, nearest
from runbook.plan.references import HOST_KEYS, KEEP, Reference, put_in, references, texts
from runbook.plan.validate import valid_part, validated
from runbook.plan.yaml_reader import At, Document, read_yaml
from runbook.steps import STEP_TYPES
from runbook.steps.checks import CHECKS
from state.graph import find_cycle
from state.model import Need, TaskKind

if TYPE_CHECKING:
    from collections.abc import Iterator

# Where references that wait for a host or a result may stand; elsewhere only parameters.
LATE_KEYS = ("with", "done_when", "ready_when")

# Stands for what a broken task does not say, so that the rest of it can be judged.
_UNSAID = "\0unsaid"


def load_runbook(path: Path | str, params: Mapping[str, str] | None = None) -> Runbook:
    """The runbook in `path` with `params` over its defaults.

    Raises:
        PlanError: with every problem that was found.
    """
    shown = str(path)
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        said = f"cannot be read: {error.strerror}"
        raise PlanError(shown, [Problem(line=1, column=1, message=said)]) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        said = f"not UTF-8 (byte 0x{raw[error.start]:02x})"
        raise PlanError(shown, [Problem(line=line, column=1, message=said)]) from error
    return load_text(text, path=shown, params=params or {})


def load_text(text: str, *, path: str, params: Mapping[str, str]) -> Runbook:
    """As `load_runbook`, of a text."""
    document = read_yaml(text)
    if not isinstance(document.data, dict):
        if not document.problems:
            document.problem((), "not a runbook: the file must be a mapping with `version: 1`")
        raise PlanError(path, document.problems)
    loading = _Loading(document)
    runbook = loading.load(params, text=text, path=path)
    if document.problems or runbook is None:
        raise PlanError(path, document.problems)
    return runbook


@dataclass(slots=True)
class _Loading:
    """One loading; holds what the stages find."""

    document: Document
    params: dict[str, Scalar] = field(default_factory=dict)
    tasks: dict[str, TaskFile] = field(default_factory=dict)
    members: dict[str, Member] = field(default_factory=dict)
    """By task id; a task without `for_each` is its own and only member."""
    families: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Name in the file -> the ids of its tasks."""
    args: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    wrong: set[str] = field(default_factory=set)
    """Families with a problem."""
    checks: dict[str, dict[str, tuple[Mapping[str, Any], ...]]] = field(default_factory=dict)

    def load(self, given: Mapping[str, str], *, text: str, path: str) -> Runbook | None:
        data = self.document.data
        self._take_params(data.get("params"), given)
        head_data = {
            **data,
            "title": self._fill(data.get("title"), ("title",)),
            "goal": self._fill(data.get("goal", ""), ("goal",)),
        }
        if "title" not in data:
            del head_data["title"]
        head = validated(RunbookFile, head_data, self.document, ())
        raw_tasks = data.get("tasks")
        raw_tasks = raw_tasks if isinstance(raw_tasks, dict) else {}
        for name, raw in raw_tasks.items():
            self._take_members(name, raw)
        for member in self.members.values():
            with self._once(member.family) as wanted:
                if wanted:
                    self._take_task(member, raw_tasks[member.family])
        self._judge_tasks(data, raw_tasks)
        self._judge_limits(data)
        for name in data["secrets"] if isinstance(data.get("secrets"), dict) else ():
            if str(name).startswith(NOT_SECRETS):
                self.document.problem(
                    ("secrets", name),
                    f"`{name}` would change what runs: name it otherwise",
                    key=True,
                )
        if head is None or self.document.problems:
            return None
        planned = tuple(self._planned(name, task, head) for name, task in self.tasks.items())
        self._judge_graph(planned)
        values = json.dumps(self.params, sort_keys=True)
        return Runbook(
            name=head.name,
            title=head.title,
            goal=head.goal,
            hosts={role: found.title for role, found in head.hosts.items()},
            phases=head.phases,
            params=self.params,
            limits=head.limits,
            secrets={name: found.source() for name, found in head.secrets.items()},
            budget=head.budget,
            tasks=planned,
            digest=hashlib.sha256(f"{text}\0{values}".encode()).hexdigest(),
            text=text,
            path=path,
        )

    # parameters

    def _take_params(self, raw: Any, given: Mapping[str, str]) -> None:
        declared = raw if isinstance(raw, dict) else {}
        for name, default in declared.items():
            at: At = ("params", name)
            if isinstance(default, dict | list):
                self.document.problem(at, f"parameter `{name}` must be one value")
            elif name in given:
                self.params[name] = self._converted(name, default, given[name])
            elif default is None:
                self.document.problem(
                    at, f"parameter `{name}` has no default; give it: -p {name}=VALUE", key=True
                )
            else:
                self.params[name] = default
            for reference in references(str(default)):
                if reference.kind not in ("host", "workspace"):
                    self._unknown(reference, at, set())
        for name in given:
            if name not in declared:
                self.document.problem(
                    ("params",),
                    f"no parameter `{name}`; known: {listed(declared)}",
                    suggestion=nearest(name, declared),
                    key=True,
                )

    def _converted(self, name: str, default: Scalar, text: str) -> Scalar:
        try:
            return _as_type_of(default, text)
        except ValueError:
            kind = {bool: "true or false", int: "a whole number", float: "a number"}
            wanted = kind[type(default)]
            self.document.problem(
                ("params", name), f"parameter `{name}` must be {wanted}; given {text!r}"
            )
            return default

    # families

    def _take_members(self, name: str, raw: Any) -> None:
        """Which tasks the file's task `name` stands for."""
        found = [Member(id=name, family=name)]
        if isinstance(raw, dict) and "for_each" in raw:
            at: At = ("tasks", name, "for_each")
            roles = self.document.data.get("hosts")
            made = self._fill(raw["for_each"], at)
            found = members(name, made, self.document, at, roles if isinstance(roles, dict) else {})
        self.families[name] = tuple(member.id for member in found)
        self.members.update({member.id: member for member in found})

    def _take_task(self, member: Member, raw: Any) -> None:
        at: At = ("tasks", member.family)
        if isinstance(raw, dict) and "for_each" in raw:
            raw = {key: value for key, value in raw.items() if key != "for_each"}
            if member.role is not None:
                if "host" in raw:
                    self.document.problem(
                        (*at, "host"), "`for_each: {hosts: ...}` says the hosts already", key=True
                    )
                raw["host"] = member.role
            raw = put_in(raw, lambda ref: _of_member(member, ref), last=False)
        filled = self._fill(raw, at, each=member.each)
        task = validated(TaskFile, filled, self.document, at)
        if task is None and isinstance(filled, dict):
            unsaid = dict.fromkeys(("title", "phase", "step"), _UNSAID)
            task = valid_part(TaskFile, filled, unsaid)
        if task is not None:
            self.tasks[member.id] = task

    @contextmanager
    def _once(self, family: str) -> Iterator[bool]:
        """What is wrong with one member is not said again for the others."""
        before = len(self.document.problems)
        yield family not in self.wrong
        if len(self.document.problems) > before:
            self.wrong.add(family)

    def _at(self, task_id: str) -> At:
        """Where a task stands in the file."""
        return ("tasks", self.members[task_id].family)

    def _named(self, word: str) -> tuple[str, ...]:
        """The tasks that a name means: all members of a family, or one of them."""
        return self.families.get(word) or ((word,) if word in self.members else ())

    def _known_task(self, word: str, at: At) -> bool:
        return word in self.members or self._known_word(word, self.families, at, "task")

    # references

    def _fill(self, value: Any, at: At, *, each: Mapping[str, Any] | None = None) -> Any:
        """`value` with the parameters put in; records what refers to nothing."""
        for inner, text in texts(value):
            late = bool(inner) and inner[0] in LATE_KEYS
            for reference in references(text):
                if reference.kind == "each":
                    self._unknown_each(reference, (*at, *inner), each)
                else:
                    self._judge_reference(reference, (*at, *inner), late=late)

        def known(reference: Reference) -> Any:
            if reference.kind == "param" and reference.key in self.params:
                return self.params[reference.key]
            return KEEP

        return put_in(value, known, last=False)

    def _judge_reference(self, reference: Reference, at: At, *, late: bool) -> None:
        if reference.kind == "param":
            declared = self.document.data.get("params") or {}
            if reference.key not in declared:
                self._unknown(reference, at, {f"param.{name}" for name in declared})
        elif reference.kind in ("unknown", "open"):
            known = {"workspace", *(f"host.{key}" for key in HOST_KEYS)}
            self._unknown(reference, at, known)
        elif not late:
            self.document.problem(
                at,
                f"${{{reference.name}}} is known only when the step is planned: "
                f"it may stand in {listed(LATE_KEYS)}",
            )

    def _unknown_each(self, reference: Reference, at: At, each: Mapping[str, Any] | None) -> None:
        known = [f"each.{name}" for name in each or ()]
        said = f"known here: {listed(known)}" if each else "only a task with `for_each` has it"
        self.document.problem(
            at,
            f"unknown reference ${{{reference.name}}}; {said}",
            suggestion=nearest(reference.name, known),
        )

    def _unknown(self, reference: Reference, at: At, known: set[str]) -> None:
        if reference.kind == "open":
            self.document.problem(
                at, f"`{reference.name}` has no closing brace; write $${{ for ${{"
            )
            return
        self.document.problem(
            at,
            f"unknown reference ${{{reference.name}}}; known: param.NAME, host.root, host.work, "
            f"workspace, task.NAME.out.KEY (write $${{ for a shell's ${{)",
            suggestion=nearest(reference.name, known),
        )

    # tasks

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

    def _known_word(self, word: str, known: Any, at: At, what: str) -> bool:
        if word == _UNSAID:
            return False
        if isinstance(known, Mapping) and word in known:
            return True
        words = list(known) if isinstance(known, Mapping) else []
        self.document.problem(
            at, f"unknown {what} `{word}`; known: {listed(words)}", suggestion=nearest(word, words)
        )
        return False

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
            self.document.problem(at, f"`host` is missing: `{task.step}` runs on one", key=True)
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

    # the graph

    def _planned(self, name: str, task: TaskFile, head: RunbookFile) -> PlannedTask:
        step = STEP_TYPES[task.step]
        defaults = head.defaults
        host = task.host if step.kind == "manual" else task.host or defaults.host
        return PlannedTask(
            id=name,
            title=task.title,
            phase=task.phase,
            role=host,
            needs=tuple(
                dict.fromkeys(
                    Need(task=other, condition=need.condition)
                    for need in task.needs
                    for other in self._named(need.task)
                )
            ),
            step=task.step,
            args=self.args.get(name, task.with_),
            done_when=self.checks[name]["done_when"],
            ready_when=self.checks[name]["ready_when"],
            resources=task.resources,
            retry=task.retry or defaults.retry,
            timeout_s=task.timeout if task.timeout is not None else defaults.timeout,
            gate=task.gate.ask if task.gate else None,
            kind=TaskKind(step.kind),
            family=self.members[name].family if self.members[name].each else "",
            estimate_s=task.estimate,
            stall=task.stall,
            budget=task.budget,
            secrets=task.secrets,
        )

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
                f"name one, such as `{several[0]}`",
            )
        elif self._known_task(reference.task, at):
            self.document.problem(
                at,
                f"${{{reference.name}}}: `{task.id}` does not need `{reference.task}`, "
                f"which may not have run by then; add it to `needs`",
            )


def _of_member(member: Member, reference: Reference) -> Any:
    """What `${each.x}` stands for in this member; everything else waits."""
    return member.each.get(reference.key, KEEP) if reference.kind == "each" else KEEP


def _all_before(name: str, needs: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    queue = list(needs[name])
    while queue:
        task = queue.pop()
        if task not in found:
            found.add(task)
            queue.extend(needs[task])
    return found


_TRUTH = {"true": True, "false": False}


def _as_type_of(default: Scalar, text: str) -> Scalar:
    """A parameter from the command line, in the type of its default; text where there is none."""
    if isinstance(default, bool):
        if text not in _TRUTH:
            raise ValueError(text)
        return _TRUTH[text]
    if isinstance(default, int):
        if not re.fullmatch(r"[-+]?[0-9]{1,30}", text):
            raise ValueError(text)
        return int(text)
    if isinstance(default, float):
        if not re.fullmatch(r"[-+0-9.eE]{1,40}", text):
            raise ValueError(text)
        return float(text)
    return text
