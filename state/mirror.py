"""Writes PROGRESS.md: whole or not at all, only when bytes change, never over people's words."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import unified_diff
from threading import get_native_id
from typing import TYPE_CHECKING

from state.conflicts import has_conflict, resolve
from state.regions import MarkersBroken, Regions, fresh, take_apart

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LEFT_AFTER_S = 3600.0
"""No writing takes so long: what lies aside for longer was left by a process that was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """What became of one writing."""

    path: Path
    """The file that holds the rendering now; another than asked for when `problem` is set."""
    changed: bool
    edit: str = ""
    """What somebody wrote into our region; the caller records it as a note."""
    edited_revision: int | None = None
    problem: str = ""
    hint: str = ""


def write_progress(
    path: Path,
    body: str,
    *,
    revision: int,
    base: Path | None = None,
    force: bool = False,
    record: Callable[[str, int], None] | None = None,
) -> Mirrored:
    """Bring the managed region of `path` to `body`, leaving all else as it is.

    `base` is where the last rendering is kept: with it an edit is told line by line. `force`
    overwrites a file that shows a later revision and settles git's conflicts. `record` is given
    an edit and its revision before the edit is overwritten: whoever dies in between has the words
    of the other person twice, never not at all.
    """
    path = path.resolve()  # a link stays a link
    with _one_writer(path.parent):
        try:
            raw = path.read_bytes()
        except FileNotFoundError:
            raw = b""
        try:
            found = _regions(raw, body, revision, settle=force)
        except (MarkersBroken, UnicodeDecodeError) as error:
            return _beside(path, body, revision, error)
        if found.revision > revision and not force:
            return Mirrored(
                path=path,
                changed=False,
                problem=f"{path.name} shows revision {found.revision}, the database is at "
                f"{revision}: a later writer was here, or the database is an older copy.",
                hint="If the database is right: runbook progress --fix",
            )
        edit = _edit(found, body, base) if found.edited else ""
        if edit and record is not None:
            record(edit, found.revision)
        text = found.with_body(body, revision).text().encode()
        changed = text != raw
        if changed:
            write_file(path, text)
        if base is not None and _differs(base, body.encode()):
            write_file(base, body.encode())
        return Mirrored(
            path=path,
            changed=changed,
            edit=edit,
            edited_revision=found.revision if edit else None,
        )


def is_current(path: Path, body: str, *, revision: int) -> bool:
    """Whether the file holds exactly this rendering; for `progress --check`."""
    try:
        raw = path.read_bytes()
        return take_apart(raw.decode("utf-8")).with_body(body, revision).text().encode() == raw
    except (OSError, MarkersBroken, UnicodeDecodeError):
        return False


def _regions(raw: bytes, body: str, revision: int, *, settle: bool) -> Regions:
    text = raw.decode("utf-8-sig")
    if settle and has_conflict(text):
        text = resolve(text, body, revision=revision)
    return take_apart(text) if text.strip() else fresh(body, revision)


def _edit(found: Regions, body: str, base: Path | None) -> str:
    """The lines that somebody added or took away, as a diff without its headers."""
    before = body
    if base is not None:
        with suppress(OSError, UnicodeDecodeError):
            before = base.read_text(encoding="utf-8")
    lines = unified_diff(before.splitlines(), found.body.splitlines(), lineterm="", n=0)
    return "\n".join(
        line for line in lines if line[:1] in "+-" and not line.startswith(("+++", "---"))
    )


def _beside(path: Path, body: str, revision: int, error: Exception) -> Mirrored:
    why = str(error) if isinstance(error, MarkersBroken) else "it is not UTF-8 text"
    target = path.with_name(f"{path.stem}.runbook{path.suffix}")
    text = fresh(body, revision).text().encode()
    changed = _differs(target, text)
    if changed:
        write_file(target, text)
    return Mirrored(
        path=target,
        changed=changed,
        problem=f"{path.name} was left as it is, because {why}; wrote {target.name} instead.",
        hint=f"Move your text out of {path.name} and delete it, or restore its markers.",
    )


def _differs(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() != data
    except FileNotFoundError:
        return True


def write_file(path: Path, data: bytes) -> None:
    """Aside, fsync, rename: after a crash there is the old file or the new one."""
    aside = path.with_name(f".{path.name}.{os.getpid()}-{get_native_id()}.partial")
    try:
        mode = path.stat().st_mode & 0o777
    except FileNotFoundError:
        mode = 0o644
    try:
        with aside.open("wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            now = os.fstat(file.fileno()).st_mtime  # by the clock that dates the others too
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    _sweep(path, before=now - LEFT_AFTER_S)
    _sync_folder(path.parent)


def _sweep(path: Path, *, before: float) -> None:
    """Remove what writers of this file that were killed have left."""
    for left in path.parent.iterdir():
        if left.name.startswith(f".{path.name}.") and left.name.endswith(".partial"):
            with suppress(OSError):
                if left.stat().st_mtime < before:
                    left.unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """The folder itself is the lock, so none is left lying beside people's files."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
