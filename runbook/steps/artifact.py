"""`artifact`: results into a store, with sha256: copied aside, read back, renamed.

Runs on the operator's side, so the files must lie on a `local` host. Copying again only reads:
what is already there with the same digest is left alone.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, BinaryIO

from pydantic import Field, field_validator

from runbook.steps.base import Json, Outcome, Step, StepArgs, StepContext, StepPlan
from runbook.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 1 << 20
MANIFEST = "manifest.json"


def inside(name: str) -> str:
    """A name that does not lead out of the store."""
    if name.startswith("/") or ".." in PurePosixPath(name).parts:
        raise ValueError(f"{name!r} is no name inside the store")
    return name


class SourceArgs(StepArgs):
    """One file or folder."""

    path: Annotated[str, Field(description="File or folder on the host.")]
    name: Annotated[str, Field(min_length=1, description="Its name in the store, slashes allowed.")]

    @field_validator("name")
    @classmethod
    def stays_inside(cls, name: str) -> str:
        """The manifest is the step's own."""
        if name == MANIFEST:
            raise ValueError(f"{name} is written by the step itself")
        return inside(name)


class ArtifactArgs(StepArgs):
    """Where to, and what."""

    store: Annotated[str, Field(description="file:///FOLDER; nothing in it is escaped.")]
    prefix: Annotated[str, Field(description="Folder inside the store for this delivery.")] = ""
    files: Annotated[tuple[SourceArgs, ...], Field(min_length=1, description="What is kept.")]

    @field_validator("prefix")
    @classmethod
    def prefix_stays_inside(cls, prefix: str) -> str:
        """As names do."""
        return inside(prefix)

    @field_validator("store")
    @classmethod
    def is_local(cls, url: str) -> str:
        """Other stores are not there yet; better said now than at the end."""
        if not url.startswith(("file:///", "file://${", "${")):
            raise ValueError(f"{url!r}: only file:///FOLDER stores are known")
        return url


class Artifact(Step[ArtifactArgs]):
    """Keep results in a store."""

    name = "artifact"
    leaves_on_host = False  # that is what it is for
    Args = ArtifactArgs

    def plan(self, args: ArtifactArgs, ctx: StepContext) -> StepPlan:
        top = store_folder(args.store) / args.prefix

        def run(live: StepContext) -> Outcome:
            if live.host_kind != "local":
                return Outcome(
                    ok=False,
                    message=f"{live.host_name} is not this machine: file:// stores take files of "
                    f"a local host only; copy them here first",
                )
            try:
                return deliver(args, top, live)
            except OSError as error:
                where = error.filename or top
                said = f"{where}: {error.strerror or error}; nothing half-written was kept"
                return _refused(said)

        return StepPlan(
            summary=tuple(f"keep {one.path} as {top / one.name}" for one in args.files),
            run=run,
            done_when=({"manifest": {"path": str(top / MANIFEST)}},),
            out={"store": f"file://{top}"},
        )


def store_folder(url: str) -> Path:
    """The folder of a file:// store."""
    # Taken as it stands: `file://${host.work}/x` holds a path that nobody escaped.
    return Path(url.removeprefix("file://"))


def deliver(args: ArtifactArgs, top: Path, ctx: StepContext) -> Outcome:
    """Copy everything, then write the manifest that lists it."""
    wanted: dict[str, Path] = {}
    for source in args.files:
        found = list(_files(Path(source.path), source.name))
        if not found:
            return _refused(f"{source.path}: no file there; run the task that makes it")
        for path, name in found:
            if name in wanted:
                return _refused(f"{wanted[name]} and {path} both want the name {name}; rename one")
            wanted[name] = path
    kept: list[dict[str, Json]] = []
    for name, path in sorted(wanted.items()):
        size, digest = _keep(path, top / name)
        kept.append({"path": name, "size": size, "sha256": digest})
        ctx.log(f"kept {name} ({show_bytes(size)})")
    _write(top / MANIFEST, (json.dumps({"files": kept}, indent=1) + "\n").encode())
    artifacts = [
        {"uri": (top / str(one["path"])).as_uri(), "size": one["size"], "sha256": one["sha256"]}
        for one in kept
    ]
    return Outcome(
        ok=True,
        out={"store": top.as_uri(), "files": len(kept)},
        evidence={"artifacts": artifacts},
        message=f"{len(kept)} files kept in {top}",
    )


def _refused(message: str) -> Outcome:
    return Outcome(ok=False, message=message)


def _files(path: Path, name: str) -> Iterator[tuple[Path, str]]:
    """A file, or every file below a folder, in order; hidden ones are no results."""
    if path.is_file():
        yield path, name
        return
    for inner in sorted(path.rglob("*")) if path.is_dir() else ():
        relative = inner.relative_to(path)
        if inner.is_file() and not any(part.startswith(".") for part in relative.parts):
            yield inner, f"{name}/{relative.as_posix()}"


def _keep(source: Path, target: Path) -> tuple[int, str]:
    """Copy one file unless the same is there; size and digest of what now is in the store."""
    digest = _digest(source)
    size = source.stat().st_size
    if target.is_file() and target.stat().st_size == size and _digest(target) == digest:
        return size, digest
    with _aside(target) as aside:
        with source.open("rb") as reading, aside.open("wb") as writing:
            shutil.copyfileobj(reading, writing, BLOCK)
            _to_disk(writing)
        if _digest(aside) != digest:
            raise OSError(f"{source} changed while it was copied, or {aside.parent} is damaged")
    return size, digest


def _write(target: Path, data: bytes) -> None:
    with _aside(target) as aside, aside.open("wb") as writing:
        writing.write(data)
        _to_disk(writing)


def _to_disk(writing: BinaryIO) -> None:
    writing.flush()
    os.fsync(writing.fileno())


@contextlib.contextmanager
def _aside(target: Path) -> Iterator[Path]:
    """A neighbour of `target` that becomes it if all went well, and is gone otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        if not _lives(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)  # whoever wrote it was killed
    aside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        yield aside
        aside.replace(target)
        _sync_folder(target.parent)
    finally:
        aside.unlink(missing_ok=True)


def _lives(pid: str) -> bool:
    return pid.isdigit() and Path(f"/proc/{pid}").exists()


def _sync_folder(folder: Path) -> None:
    """A rename is only on the disk once its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
