"""`artifact`: results into a store of the operator's side, `file://` or `s3://`, with sha256.

Files of a host behind SSH are fetched first, resumably; for large sets there is `upload`, which
goes from the host itself. Doing it again only reads: what is there with the same digest stays.
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

from runbook.steps.base import Json, Outcome, Step, StepArgs, StepContext, StepPlan, host_of
from runbook.steps.object_args import StoreArgs
from runbook.units import show_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

BLOCK = 1 << 20
MANIFEST = "manifest.json"
S3 = "s3://"


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


class ArtifactArgs(StoreArgs):
    """Where to, and what."""

    store: Annotated[
        str, Field(description="file:///FOLDER, nothing in it escaped; or s3://BUCKET/FOLDER.")
    ]
    prefix: Annotated[str, Field(description="Folder inside the store for this delivery.")] = ""
    files: Annotated[tuple[SourceArgs, ...], Field(min_length=1, description="What is kept.")]

    @field_validator("prefix")
    @classmethod
    def prefix_stays_inside(cls, prefix: str) -> str:
        """As names do."""
        return inside(prefix)

    @field_validator("store")
    @classmethod
    def is_known(cls, url: str) -> str:
        """Better said now than at the end."""
        if not url.startswith(("file:///", "file://${", S3, "${")) or url == S3:
            raise ValueError(f"{url!r}: only file:///FOLDER and s3://BUCKET/FOLDER are known")
        return url


class Artifact(Step[ArtifactArgs]):
    """Keep results in a store."""

    name = "artifact"
    leaves_on_host = False  # that is what it is for
    Args = ArtifactArgs

    def plan(self, args: ArtifactArgs, ctx: StepContext) -> StepPlan:
        top = args.store if args.store.startswith(S3) else str(store_folder(args.store))
        top = f"{top.rstrip('/')}/{args.prefix}".rstrip("/")
        in_s3 = top.startswith(S3)

        def run(live: StepContext) -> Outcome:
            try:
                with _brought_here(args, live) as sources:
                    if in_s3:
                        return deliver_to_s3(args, sources, top, live)
                    return deliver(sources, Path(top), live)
            except OSError as error:
                where = error.filename or top
                said = f"{where}: {error.strerror or error}; nothing half-written was kept"
                return _refused(said)

        # A host can look only into its own folders: elsewhere the step has read back what it kept.
        here = not in_s3 and ctx.host_kind == "local"
        return StepPlan(
            summary=tuple(f"keep {one.path} as {top}/{one.name}" for one in args.files),
            run=run,
            done_when=({"manifest": {"path": f"{top}/{MANIFEST}"}},) if here else (),
            out={"store": top if in_s3 else f"file://{top}"},
        )


@contextlib.contextmanager
def _brought_here(args: ArtifactArgs, ctx: StepContext) -> Iterator[list[tuple[Path, str]]]:
    """Each source as a path of this machine; fetched ones are gone afterwards, if all went well."""
    if ctx.host_kind == "local":
        yield [(Path(source.path), source.name) for source in args.files]
        return
    inbox = ctx.workspace / ".runbook" / "inbox" / ctx.task_id
    inbox.mkdir(parents=True, exist_ok=True)
    found = []
    for source in args.files:
        ctx.log(f"fetching {source.path} from {ctx.host_name}")
        path = inbox / hashlib.sha256(source.path.encode()).hexdigest()[:16]
        if host_of(ctx).pull(source.path, path).files != _count(path):
            shutil.rmtree(path)  # files of an earlier attempt that are gone there now
            host_of(ctx).pull(source.path, path)
        found.append((path, source.name))
    yield found
    shutil.rmtree(inbox, ignore_errors=True)


def _count(path: Path) -> int:
    return sum(inner.is_file() for inner in path.rglob("*")) if path.is_dir() else 1


def store_folder(url: str) -> Path:
    """The folder of a file:// store."""
    # Taken as it stands: `file://${host.work}/x` holds a path that nobody escaped.
    return Path(url.removeprefix("file://"))


def deliver(sources: Sequence[tuple[Path, str]], top: Path, ctx: StepContext) -> Outcome:
    """Copy everything, then write the manifest that lists it."""
    wanted = _wanted(sources)
    if isinstance(wanted, Outcome):
        return wanted
    kept: list[dict[str, Json]] = []
    for name, path in sorted(wanted.items()):
        size, digest = _keep(path, top / name)
        kept.append({"path": name, "size": size, "sha256": digest})
        ctx.log(f"kept {name} ({show_bytes(size)})")
    _write(top / MANIFEST, (json.dumps({"files": kept}, indent=1) + "\n").encode())
    return _delivered(kept, top.as_uri(), str(top), lambda name: (top / name).as_uri())


def deliver_to_s3(
    args: ArtifactArgs, sources: Sequence[tuple[Path, str]], top: str, ctx: StepContext
) -> Outcome:
    """The same with objects; `dflash get` and the step `download` read what it leaves."""
    from dflash.errors import DflashError
    from dflash.objects import open_store
    from dflash.progress import Progress
    from dflash.put import local_file, send
    from dflash.s3 import StoreOptions

    wanted = _wanted(sources)
    if isinstance(wanted, Outcome):
        return wanted
    options = StoreOptions(endpoint=args.endpoint, region=args.region, addressing=args.addressing)
    try:
        files = [local_file(path, name) for name, path in sorted(wanted.items())]
        kept, _ = send(files, open_store(top, options), options, progress=Progress())
    except DflashError as error:
        return _refused(f"{error.message}. {error.hint}")
    for entry in kept:
        ctx.log(f"kept {entry['path']} ({show_bytes(entry['size'])})")
    return _delivered(kept, top, top, lambda name: f"{top}/{name}")


def _wanted(sources: Sequence[tuple[Path, str]]) -> dict[str, Path] | Outcome:
    """Every file by its name in the store; or what is wrong with them."""
    wanted: dict[str, Path] = {}
    for source, name_there in sources:
        found = list(_files(source, name_there))
        if not found:
            return _refused(f"{source}: no file there; run the task that makes it")
        for path, name in found:
            if name in wanted:
                return _refused(f"{wanted[name]} and {path} both want the name {name}; rename one")
            wanted[name] = path
    return wanted


def _delivered(
    kept: Sequence[dict[str, Json]], store: str, shown: str, uri_of: Callable[[str], str]
) -> Outcome:
    artifacts = [
        {"uri": uri_of(str(one["path"])), "size": one["size"], "sha256": one["sha256"]}
        for one in kept
    ]
    return Outcome(
        ok=True,
        out={"store": store, "files": len(kept)},
        evidence={"artifacts": artifacts},
        message=f"{len(kept)} files kept in {shown}",
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
