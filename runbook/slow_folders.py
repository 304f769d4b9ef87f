"""Whether a folder of a host is slow, by which measured figure, and which local one is not.

Read from the host's recorded facts (`mounts` and `radar`), without asking the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from runbook.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

BAD = ("slow", "hung")
NOT_MEASURED = "not measured; `runbook host probe` measures what is there"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowFolder:
    """A folder where no environment and no model should lie."""

    path: str
    mount: str
    kind: str
    """The file system's type."""
    why: str
    """The measured figure, or that there is none."""
    instead: str
    """A local folder with room; empty when none is known."""
    free_bytes: int

    def __str__(self) -> str:
        other = f"; {self.instead} is local, {show_bytes(self.free_bytes)} free"
        where = f"{self.kind} at {self.mount}"
        return f"{self.path} is slow ({where}): {self.why}{other if self.instead else ''}"


def slow_folder(facts: Mapping[str, Any], path: str) -> SlowFolder | None:
    """What the facts of a host say against a folder of it; None when they say nothing."""
    if path.startswith("~"):
        path = f"{facts.get('home', '')}{path[1:]}"
    mount = mount_of(facts, path)
    kind, network = str(mount.get("type", "")), bool(mount.get("network"))
    here = [row for row in radar_rows(facts) if mount_of(facts, row["path"]) == mount]
    if not network:  # one folder of a disk says nothing of the others
        here = [row for row in here if PurePosixPath(path).is_relative_to(row["path"])]
    row = next((row for row in here if row.get("verdict") in BAD), None)
    if row is None and (here or not network):
        return None
    other = (row or {}).get("alternative") or local_room(facts)
    return SlowFolder(
        path=path, mount=str(mount["path"]), kind=kind, why=row["why"] if row else NOT_MEASURED,
        instead=str(other.get("path", "")), free_bytes=int(other.get("free_bytes") or 0),
    )  # fmt: skip


def slow_rows(facts: Mapping[str, Any]) -> Iterator[SlowFolder]:
    """Every folder that was measured and found slow."""
    for row in radar_rows(facts):
        found = slow_folder(facts, row["path"])
        if found is not None and row.get("verdict") in BAD:
            yield found


def radar_rows(facts: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was measured; nothing in facts of an older time."""
    return [row for row in facts.get("radar") or () if row.get("verdict") not in (None, "unknown")]


def mount_of(facts: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The mount that holds a path, by its name alone; of two at one place the later is seen."""
    best: Mapping[str, Any] = {"path": "/"}
    for one in facts.get("mounts") or ():
        if PurePosixPath(path).is_relative_to(one["path"]) and len(one["path"]) >= len(
            best["path"]
        ):
            best = one
    return best


def local_room(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """The local disk with the most room, by the mounts alone."""
    local = [
        one for one in facts.get("mounts") or ()
        if not (one.get("network") or one.get("read_only")) and one.get("free_bytes")
        and one.get("type") not in ("tmpfs", "ramfs")
    ]  # fmt: skip
    return max(local, key=lambda one: int(one["free_bytes"]), default={})
