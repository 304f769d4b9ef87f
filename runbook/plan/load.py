"""Load a runbook file: read, put parameters in, validate, and look at the graph as a whole.

Every stage records problems and goes on with what is left, so that one run names them all.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runbook.plan.families import Member, members
from runbook.plan.judging import Judging
from runbook.plan.model import PlannedTask, Runbook
from runbook.plan.names import UNSAID
from runbook.plan.parameters import parameter
from runbook.plan.problems import PlanError, Problem, listed, nearest
from runbook.plan.references import KEEP, Reference, put_in, references, spread
from runbook.plan.shape import NOT_SECRETS, LikeFile, RunbookFile, Scalar, TaskFile
from runbook.plan.validate import valid_part, validated
from runbook.plan.yaml_reader import At, read_yaml
from runbook.steps import STEP_TYPES
from state.model import Need, TaskKind

if TYPE_CHECKING:
    from collections.abc import Mapping


def load_runbook(path: Path | str, params: Mapping[str, str] | None = None) -> Runbook:
    """The runbook in `path` with `params` over its defaults.

    Raises:
        PlanError: with every problem that was found.
    """
    return load_text(read_file(path), path=str(path), params=params or {})


def read_file(path: Path | str) -> str:
    """The text of a runbook file.

    Raises:
        PlanError: it cannot be read, or is no UTF-8.
    """
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        said = f"cannot be read: {error.strerror}"
        hint = "Name a runbook file that is there, or a bundled one, such as `demo`."
        raise PlanError(str(path), [Problem(line=1, column=1, message=said)], hint=hint) from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        said = f"not UTF-8 (byte 0x{raw[error.start]:02x})"
        raise PlanError(str(path), [Problem(line=line, column=1, message=said)]) from error


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
        asks = {
            name: word
            for name, word in document.asks.items()
            if name in params or document.data["params"][name] is None
        }
        only = asks and len(asks) == len(document.problems)
        hint = f"Repeat the command with {' '.join(asks.values())}" if only else ""
        raise PlanError(path, document.problems, hint=hint)
    return runbook


@dataclass(slots=True)
class _Loading(Judging):
    """One loading: reads, puts parameters in, and plans what is left."""

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
                found = parameter(self.document, name)
                self.document.asks[name] = found.word()
                self.document.problem(
                    at,
                    f"parameter `{name}` has no default; give it: {found.word()}{found.told()}",
                    key=True,
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
            found = parameter(self.document, name)
            self.document.asks[name] = found.word()
            self.document.problem(
                ("params", name),
                f"parameter `{name}` must be {wanted}; given {text!r}{found.told()}",
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
        for role in {member.role: None for member in found if member.role}:
            here = tuple(member.id for member in found if member.role == role)
            if here != (f"{name}@{role}",):  # `serve@box`: of `serve[a]@...`, those on that host
                self.families[f"{name}@{role}"] = here

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
        filled = spread(self._fill(raw, at, each=member.each), self._named)
        task = validated(TaskFile, filled, self.document, at)
        if task is None and isinstance(filled, dict):
            unsaid = dict.fromkeys(("title", "phase", "step"), UNSAID)
            task = valid_part(TaskFile, filled, unsaid)
        if task is not None:
            self.tasks[member.id] = task

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
            estimate_s=None if isinstance(task.estimate, LikeFile) else task.estimate,
            estimate_like=task.estimate if isinstance(task.estimate, LikeFile) else None,
            stall=task.stall,
            budget=task.budget,
            secrets=task.secrets,
        )


def _of_member(member: Member, reference: Reference) -> Any:
    """What `${each.x}` stands for in this member; everything else waits."""
    return member.each.get(reference.key, KEEP) if reference.kind == "each" else KEEP


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
