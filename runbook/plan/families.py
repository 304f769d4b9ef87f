"""`for_each`: one task of a file becomes a family of tasks, each with an id that edits keep.

A member is named by its value and not by its place: `make[a]` stays `make[a]` whatever is put
before it in the list, and `probe@box` is the member on the host role `box`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from runbook.plan.problems import listed, nearest

if TYPE_CHECKING:
    from runbook.plan.yaml_reader import At, Document

HOSTS = "hosts"
"""The axis over host roles; `${each.host}` is the role."""
GIVEN = ("index", "number", "count")
"""What every member knows besides its own values: its place from 0, from 1, and out of how many."""
MOST = 10_000
LONGEST_ID = 120  # a host names folders by it
_NAME = re.compile(r"[a-z][a-z0-9_]{0,29}")
_VALUE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One task of a family; of a task without `for_each`, the task itself."""

    id: str
    family: str
    each: Mapping[str, Any] = field(default_factory=dict)
    """What `${each.NAME}` stands for."""
    role: str | None = None


def members(
    name: str, raw: Any, document: Document, at: At, roles: Mapping[str, Any]
) -> list[Member]:
    """The members that a `for_each` makes; none when it is wrong, which is then recorded."""
    if not isinstance(raw, Mapping) or not raw:
        said = "for_each is a mapping such as `{i: 8}`, `{shard: [a, b]}` or `{hosts: [box, bay]}`"
        document.problem(at, said)
        return []
    axes = {axis: _values(axis, value, document, (*at, axis), roles) for axis, value in raw.items()}
    total = 1
    for values in axes.values():
        total *= len(values)
    if total == 0:
        return []
    if total > MOST:
        document.problem(at, f"{total:,} tasks of one family; at most {MOST:,}")
        return []
    made = []
    places = product(*(range(len(values)) for values in axes.values()))
    for index, (chosen, place) in enumerate(zip(product(*axes.values()), places, strict=True)):
        each = dict(zip(axes, chosen, strict=True))
        on_axis = {
            f"{'host' if axis == HOSTS else axis}_index": at
            for axis, at in zip(axes, place, strict=True)
        }
        role = each.pop(HOSTS, None)
        at_role = f"@{role}" if role else ""
        mark = f"[{','.join(map(str, each.values()))}]" if each else ""
        own = {**each, **({"host": role} if role else {}), **on_axis}
        known = {**own, "index": index, "number": index + 1, "count": total}
        made.append(Member(id=f"{name}{at_role}{mark}", family=name, each=known, role=role))
    if any(len(member.id) > LONGEST_ID for member in made):
        document.problem(at, f"the names of its members are longer than {LONGEST_ID} characters")
        return []
    return made


def _values(
    axis: str, value: Any, document: Document, at: At, roles: Mapping[str, Any]
) -> list[Any]:
    if axis == HOSTS:
        return _roles(value, document, at, roles)
    if not _NAME.fullmatch(axis) or axis in (*GIVEN, "host"):
        taken = "host, index, number, count"
        said = f"`{axis}` cannot be a name here: use small letters, and none of {taken}"
        document.problem(at, said, key=True)
        return []
    if isinstance(value, str):  # a group of roles, for a task that runs elsewhere
        return list(_roles(value, document, at, roles))
    if isinstance(value, int) and not isinstance(value, bool):
        if not 1 <= value <= MOST:
            document.problem(at, f"`{axis}`: a count from 1 to {MOST:,}; found {value}")
            return []
        return list(range(value))
    if not isinstance(value, list) or not value:
        document.problem(at, f"`{axis}`: a count such as 8, or a list of values")
        return []
    found: list[Any] = []
    for index, one in enumerate(value):
        fits = isinstance(one, str | int) and not isinstance(one, bool)
        if not fits or not _VALUE.fullmatch(str(one)):
            said = f"`{one}` cannot be part of a task's name: letters, digits, `.`, `_`, `-`"
            document.problem((*at, index), said)
        elif str(one) in map(str, found):
            document.problem((*at, index), f"`{one}` stands here twice")
        else:
            found.append(one)
    return found


def _roles(value: Any, document: Document, at: At, roles: Mapping[str, Any]) -> list[str]:
    """Named roles, or those of a group, in the order of the file."""
    if isinstance(value, str):
        groups: dict[str, list[str]] = {}
        for role, about in roles.items():
            if isinstance(about, Mapping) and about.get("group"):
                groups.setdefault(str(about["group"]), []).append(role)
        if value not in groups:
            said = f"no host role has `group: {value}`; groups: {listed(groups)}"
            document.problem(at, said, suggestion=nearest(value, groups))
        return groups.get(value, [])
    if not isinstance(value, list) or not value:
        document.problem(at, "`hosts`: a list of host roles, or the name of a group of them")
        return []
    found: list[str] = []
    for index, role in enumerate(value):
        if role not in roles:
            said = f"unknown host role `{role}`; known: {listed(roles)}"
            document.problem((*at, index), said, suggestion=nearest(str(role), roles))
        elif role in found:
            document.problem((*at, index), f"`{role}` stands here twice")
        else:
            found.append(role)
    return found
