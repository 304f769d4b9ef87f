"""Files that appear whole or not at all, digests, and JSON lines that say where they are wrong.

Standard library only. Everything another process may read is written aside in the same folder,
fsynced and renamed; after a kill or a full disk the old file is still there.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from dflash.errors import DflashError, InputInvalid
from dflash.json_shape import misfit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

ASIDE_SUFFIX = ".part"
AGAIN = "Mend it, or run the step that writes it again."


@contextlib.contextmanager
def write_aside(path: Path, *, named: bool = True) -> Iterator[BinaryIO]:
    """Open a neighbour of `path`; on a clean exit it becomes `path`, else it is removed. Its name
    survives a power cut only when `named`, or after `sync_folder`; its content always."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}{ASIDE_SUFFIX}")
    try:
        with aside.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(path)
    except BaseException as error:
        aside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # "No space left on device" - but where?
        raise
    if named:
        sync_folder(path.parent)


def remove_asides(folder: Path) -> None:
    """What killed writers left; only for one who holds the folder's lock."""
    for path in folder.glob(f".*{ASIDE_SUFFIX}"):
        path.unlink(missing_ok=True)


def lock_folder(folder: Path) -> TextIO:
    """One writer at a time; the lock ends with its process, however that ends. Close to release."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = (folder / ".lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise DflashError(
            f"another process writes into {folder}", "Wait for it or stop it; one writer at a time."
        ) from None
    return handle


def write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False, indent=1, allow_nan=False)
    write_text(path, text + "\n")


def write_text(path: Path, text: str) -> None:
    with write_aside(path) as handle:
        handle.write(text.encode())


def read_json(
    path: Path,
    what: str,
    shape: Mapping[str, Any] | None = None,
    *,
    form: str = "",
    hint: str = AGAIN,
) -> dict[str, Any]:
    """The object in a JSON file, as `json_object` wants it."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputInvalid(
            f"there is no {what} at {path}", "Check the path, or run the step that writes it."
        ) from None
    except OSError as error:
        raise InputInvalid(f"{path} cannot be read as the {what}: {error}", hint) from error
    return json_object(data, path, what, shape, form=form, hint=hint)


def json_object(
    data: bytes,
    where: Path | str,
    what: str,
    shape: Mapping[str, Any] | None = None,
    *,
    form: str = "",
    hint: str = AGAIN,
) -> dict[str, Any]:
    """An object, or an error that names its place, what stands there and what to do.

    `shape`: what its reader takes of it (dflash/json_shape.py); `form`: what its `format` says.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputInvalid(f"{where} cannot be read as the {what}: {error}", hint) from error
    if not isinstance(value, dict):
        raise InputInvalid(f"{where} holds a {type(value).__name__}, the {what} is an object", hint)
    if form and value.get("format") != form:
        raise InputInvalid(f"{where} has format {value.get('format')!r}, not {form}", hint)
    if shape is not None and (wrong := misfit(value, shape)):
        raise InputInvalid(f"{where} cannot be read as the {what}: {wrong}", hint)
    return value


def sha256_file(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def describe_file(path: Path, root: Path) -> dict[str, Any]:
    """The manifest's entry for one file."""
    return {
        "path": path.relative_to(root).as_posix(),
        "size": path.stat().st_size,
        "sha256": sha256_file(path),
    }


def read_jsonl(path: Path, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Line number and object of every line; blank lines are skipped, a bad one is an error."""
    for number, line in jsonl_lines(path, what):
        yield number, parse_line(line, path, number, what)


def jsonl_lines(path: Path, what: str, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Number and bytes of every line that is not blank, or of those too."""
    try:
        handle = path.open("rb")
    except OSError as error:
        raise InputInvalid(
            f"cannot open the {what} {path}: {error.strerror}", "Check the path."
        ) from error
    with handle:
        for number, line in enumerate(handle, start=1):
            if blank or line.strip():
                yield number, line


def parse_line(line: bytes, path: Path, number: int, what: str) -> dict[str, Any]:
    """The object of one line, or an error that says where it is wrong."""
    try:
        value = json.loads(line.decode("utf-8"))
        problem = "" if isinstance(value, dict) else f"a {type(value).__name__}, not an object"
    except UnicodeDecodeError as error:
        problem = f"bytes that are not UTF-8 at column {error.start + 1}"
    except json.JSONDecodeError as error:
        problem = f"no JSON ({error.msg} at column {error.colno})"
    if problem:
        raise InputInvalid(
            f"{path}:{number}: found {problem}: {_excerpt(line)}",
            f"Mend or remove line {number} of the {what} and run the same command again.",
        )
    return value


def _excerpt(line: bytes) -> str:
    text = line.decode("utf-8", errors="replace").strip()
    return repr(text if len(text) <= 80 else text[:80] + "…")


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` survive a power cut, where the file system can."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def manifest_of(root: Path, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Size and digest of every file below `root`, but for the manifest itself."""
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != "manifest.json")
    return {**extra, "files": [describe_file(path, root) for path in files]}
