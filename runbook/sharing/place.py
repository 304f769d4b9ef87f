"""The address of a shared snapshot, what a store must do, and what it may refuse."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from runbook.errors import Exit, RunbookError
from state.mirror import write_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runbook.workspace import Workspace

OBJECT = "state.runbook"
"""The name that an address of a folder (`s3://bucket/runs/`) gets."""
ADDRESSING = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An address, with what an S3-compatible store needs to be found."""

    url: str
    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies there now."""

    data: bytes
    tag: str
    """Names exactly this content to the store."""
    age_s: float | None
    """By the store's own clock; only for people to read."""


class Moved(Exception):
    """The conditional write was refused: something else lies there than we were told."""


class SnapshotStore(Protocol):
    """One place for one snapshot."""

    label: str

    def read(self) -> Found | None:
        """What lies there; None when nothing does."""

    def write(self, data: bytes, *, over: str | None) -> None:
        """Put it there if `over` is still what lies there (None: nothing). Raises Moved."""

    def beside(self, suffix: str) -> SnapshotStore:
        """A neighbour, for a copy that is to be kept."""

    def prove_conditions(self) -> None:
        """Raises RunbookError when the store takes writes whose condition does not hold."""


def open_place(place: Place) -> SnapshotStore:
    """The store behind an address."""
    if place.url.startswith("s3://"):
        from runbook.sharing.s3_store import S3Store

        return S3Store.open(place)
    from runbook.sharing.file_store import FileStore

    return FileStore(_file(place.url))


def _file(url: str) -> Path:
    if "://" in url and not url.startswith("file://"):
        raise RunbookError(
            f"{url}: this kind of address is not known.",
            hint="Known are s3://BUCKET/KEY, file:///PATH and plain paths.",
        )
    path = Path(url.removeprefix("file://"))
    if url.endswith("/") or path.is_dir():
        path /= OBJECT
    return path.absolute()


def remembered(workspace: Workspace) -> Place | None:
    """Where this workspace was last pushed to or pulled from."""
    try:
        found = json.loads(_memory(workspace).read_text(encoding="utf-8"))
        return Place(**{name: str(found[name]) for name in Place.__slots__})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(workspace: Workspace, place: Place) -> None:
    """So that the next `runbook push` needs no address."""
    write_file(_memory(workspace), (json.dumps(asdict(place), indent=1) + "\n").encode())


def _memory(workspace: Workspace) -> Path:
    return workspace.share_file


def choose(
    given: str | None, options: Mapping[str, str | None], workspace: Workspace | None
) -> Place:
    """The address from the command line, else the remembered one; options over what was kept."""
    known = remembered(workspace) if workspace is not None else None
    if given is None and known is None:
        raise RunbookError(
            "Which place? "
            + ("There is no workspace here" if workspace is None else "This workspace")
            + (" that could know it." if workspace is None else " was never pushed or pulled."),
            hint="Name a file or an address: `runbook push s3://BUCKET/KEY`, or "
            "`runbook pull s3://BUCKET/KEY --dir DIR`.",
        )
    url = known.url if given is None and known is not None else given or ""
    if not url.startswith("s3://") and "://" not in url:
        url = str(Path(url).absolute()) + ("/" if url.endswith("/") else "")
    kept = known if known is not None and known.url == url else Place(url=url)
    return Place(
        url=url,
        endpoint=options.get("endpoint") or kept.endpoint,
        region=options.get("region") or kept.region,
        addressing=options.get("addressing") or kept.addressing,
    )


def ignores_conditions(label: str) -> RunbookError:
    """Such a store cannot refuse a stale writer."""
    return RunbookError(
        f"{label}: the store ignores the conditions of writes (If-Match, If-None-Match), so a "
        "stale writer could overwrite a newer state. It is not used; nothing was pushed.",
        hint="Use a store that honours them (AWS S3, R2, MinIO), or push to a file.",
        exit_code=Exit.USAGE,
    )
