"""What a runbook file names, while it is loaded: tasks, families, and every `${...}`.

Names are looked up here; one that is not found is recorded with its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from runbook.plan.problems import listed, nearest
from runbook.plan.references import HOST_KEYS, KEEP, Reference, put_in, references, texts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runbook.plan.families import Member
    from runbook.plan.shape import Scalar, TaskFile
    from runbook.plan.yaml_reader import At, Document

# Where references that wait for a host or a result may stand; elsewhere only parameters.
LATE_KEYS = ("with", "done_when", "ready_when")

# Stands for what a broken task does not say, so that the rest of it can be judged.
UNSAID = "\0unsaid"


@cache
def known_keys() -> frozenset[str]:
    """The keys that a task may have."""
    from runbook.plan.shape import TaskFile

    named = (field.alias or name for name, field in TaskFile.model_fields.items())
    return frozenset((*named, "for_each"))


@dataclass(slots=True)
class Names:
    """What one loading knows by name, and the document that its problems are about."""

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

    def _known_word(self, word: str, known: Any, at: At, what: str) -> bool:
        if word == UNSAID:
            return False
        if isinstance(known, Mapping) and word in known:
            return True
        words = list(known) if isinstance(known, Mapping) else []
        self.document.problem(
            at, f"unknown {what} `{word}`; known: {listed(words)}", suggestion=nearest(word, words)
        )
        return False

    # references

    def _fill(self, value: Any, at: At, *, each: Mapping[str, Any] | None = None) -> Any:
        """`value` with the parameters put in; records what refers to nothing."""
        for inner, text in texts(value):
            # Of a key that no task has, it is said that it is unknown; nothing more is known of it.
            of_task = len(at) == 2 and bool(inner) and inner[0] not in known_keys()
            late = of_task or (bool(inner) and inner[0] in LATE_KEYS)
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
