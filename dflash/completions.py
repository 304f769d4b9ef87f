"""The folder of completions: whole shards, a manifest, and the rows not yet in a shard.

    shard-00000.jsonl ...   sealed, listed in the manifest with rows, size and sha256
    inflight.jsonl          finished rows on their way into the next shard
    manifest.json           settings of the run and the sealed shards

After a kill at any point the set of done ids is rebuilt from the rows themselves: a torn last line
is cut, a shard that was renamed but not yet listed is adopted, a row that stands both in it and in
inflight.jsonl counts once. One writer at a time, held by a file lock that dies with its process.

A row begins with its id, the digest of its prompt and its tokens, so that going on after days of
work hashes the shards and parses nothing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import time
from typing import TYPE_CHECKING, Any, Self

from dflash.errors import DflashError, InputInvalid
from dflash.files import (
    lock_folder,
    read_json,
    read_jsonl,
    remove_asides,
    write_aside,
    write_json,
)
from dflash.prompts import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path
    from types import TracebackType

FORMAT = "dflash-completions/1"
MANIFEST = "manifest.json"
INFLIGHT = "inflight.jsonl"
SHAPE = {
    "settings": dict,
    "shards": [{"file": str, "rows": int, "bytes": int, "sha256": str}],
    "servers?": dict,
}
"""Of the manifest."""
SYNC_SECONDS = 1.0
HEAD = re.compile(rb'\{"id":("(?:[^"\\]|\\.)*"),"prompt_hash":"([0-9a-f]{16})","tokens":(\d+),')


class CompletionStore:
    """The single writer of one folder; `done` maps each finished id to its prompt's digest.

    Args:
        sealed: Told of each shard, also of those that are there already.
    """

    def __init__(
        self,
        path: Path,
        *,
        settings: dict[str, Any],
        shard_rows: int,
        sealed: Callable[[dict[str, Any]], None] = lambda entry: None,
    ) -> None:
        self.path = path
        self.shard_rows = shard_rows
        self.done: dict[str, int] = {}
        self.tokens = 0
        self.notices: list[str] = []
        self._lock = lock_folder(path)
        try:
            remove_asides(path)
            self._manifest = self._load_manifest(settings)
            self._adopt_shards()
            self._waiting = self._recover_inflight()
            self._tail = (path / INFLIGHT).open("ab", buffering=0)
        except BaseException:
            self._lock.close()
            raise
        self._synced = time.monotonic()
        self._sealed = sealed
        for entry in self._manifest["shards"]:
            sealed(entry)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(OSError):  # a full disk was already reported by the write itself
            self._tail.close()
        self._lock.close()

    def add(self, record: dict[str, Any]) -> None:
        """One finished row; it survives a kill from here on."""
        if record["id"] in self.done:
            return
        line = line_of(record)
        self._append(line)
        self._remember(line)
        self._waiting.append(line)
        if len(self._waiting) >= self.shard_rows:
            self._seal()

    def note_server(self, url: str, identity: dict[str, Any]) -> None:
        """Which server gave rows of this folder; written with the next shard."""
        self._manifest["servers"][url] = identity

    def reopen(self) -> None:
        """More is to come: whoever looks at the manifest must not take the folder for finished."""
        if self._manifest["complete"]:
            self._manifest["complete"] = False
            self._write_manifest()

    def finish(self, *, complete: bool, failed: int, **more: Any) -> dict[str, Any]:
        """Seal what is left and say whether enough prompts are in; returns the manifest."""
        if self._waiting:
            self._seal()
        self._manifest.update(complete=complete, failed=failed, **more)
        self._write_manifest()
        return self._manifest

    def _append(self, line: bytes) -> None:
        start = self._tail.tell()
        try:
            if self._tail.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            # Half a line must not become the middle of the file once there is room again.
            with contextlib.suppress(OSError):
                os.truncate(self.path / INFLIGHT, start)
            error.filename = str(self.path / INFLIGHT)
            raise
        if time.monotonic() - self._synced > SYNC_SECONDS:
            os.fsync(self._tail.fileno())
            self._synced = time.monotonic()

    def _remember(self, line: bytes) -> None:
        if head := HEAD.match(line):
            name, digest, tokens = json.loads(head[1]), int(head[2], 16), int(head[3])
        else:  # another writer's row
            record = json.loads(line)
            name = record["id"]
            digest = digest_of(record["messages"], record.get("tools"))
            tokens = int((record.get("usage") or {}).get("completion_tokens") or 0)
        self.done[name] = digest
        self.tokens += tokens

    def latest(self, rows: int) -> Iterator[dict[str, Any]]:
        """So many of the last rows, in their order."""
        lines = list(self._waiting)
        for entry in reversed(self._manifest["shards"]):
            if len(lines) >= rows:
                break
            lines[:0] = (self.path / entry["file"]).read_bytes().splitlines()
        yield from map(json.loads, lines[-rows:])

    def contents(self, ids: Collection[str]) -> dict[str, str]:
        """What the target said in these rows."""
        wanted, found = set(ids), {}
        names = [entry["file"] for entry in self._manifest["shards"]] if wanted else []
        for name in [*names, INFLIGHT]:
            with (self.path / name).open("rb") as handle:
                for line in handle:
                    head = HEAD.match(line)
                    if head is None or json.loads(head[1]) in wanted:
                        record = json.loads(line)
                        found[record["id"]] = str(record.get("content") or "")
        return found

    def _seal(self) -> None:
        """Shard, then manifest, then an empty inflight file: a kill between two is recovered."""
        name = f"shard-{len(self._manifest['shards']):05d}.jsonl"
        entry = _write_shard(self.path / name, self._waiting)
        self._manifest["shards"].append(entry)
        self._manifest["complete"] = False
        self._write_manifest()
        self._sealed(entry)
        self._tail.close()
        with write_aside(self.path / INFLIGHT):
            pass
        self._tail = (self.path / INFLIGHT).open("ab", buffering=0)
        self._waiting = []

    def _write_manifest(self) -> None:
        self._manifest["rows"] = sum(entry["rows"] for entry in self._manifest["shards"])
        self._manifest["tokens"] = self.tokens
        write_json(self.path / MANIFEST, self._manifest)

    def _load_manifest(self, settings: dict[str, Any]) -> dict[str, Any]:
        if not (self.path / MANIFEST).is_file():
            fresh: dict[str, Any] = {
                "format": FORMAT,
                "settings": settings,
                "servers": {},
                "complete": False,
                "shards": [],
            }
            write_json(self.path / MANIFEST, fresh)
            return fresh
        manifest = read_manifest(self.path)
        before = manifest["settings"]
        changed = [key for key in settings | before if before.get(key) != settings.get(key)]
        if changed:
            words = ", ".join(
                f"{key} {before.get(key)!r} -> {settings.get(key)!r}" for key in changed
            )
            raise DflashError(
                f"{self.path} was begun with other settings: {words}",
                "Use the same ones to go on, or another --out for the new ones.",
            )
        return manifest

    def _adopt_shards(self) -> None:
        """Read every shard for its ids; list what a kill left unlisted, save what is damaged."""
        listed = {entry["file"]: entry for entry in self._manifest["shards"]}
        on_disk = {path.name for path in self.path.glob("shard-?????.jsonl")}
        entries: list[dict[str, Any]] = []
        for name in sorted(listed.keys() | on_disk):
            entry = self._check_shard(self.path / name, listed.get(name))
            entries.append(entry)
        if entries != self._manifest["shards"]:
            self._manifest["shards"] = entries
            self._manifest["complete"] = False
            self._write_manifest()

    def _check_shard(self, path: Path, entry: dict[str, Any] | None) -> dict[str, Any]:
        data = path.read_bytes() if path.is_file() else b""
        found = _entry(path.name, data)
        if entry is not None and found["sha256"] == entry["sha256"]:
            for line in data.splitlines():
                self._remember(line)
            return entry
        whole = [line for line in data.splitlines(keepends=True) if self._usable(line)]
        if entry is None and len(whole) == found["rows"]:
            return found
        expected = entry["rows"] if entry else found["rows"]
        self.notices.append(
            f"{path.name} is damaged: {len(whole)} of {expected} rows are readable, "
            f"the others are generated again (the file is kept as {path.name}.damaged)"
        )
        if path.exists():
            path.replace(path.with_name(path.name + ".damaged"))
        return _write_shard(path, whole)

    def _usable(self, line: bytes) -> bool:
        record = _record(line)
        if record is None or record["id"] in self.done:
            return False
        self._remember(line)
        return True

    def _recover_inflight(self) -> list[bytes]:
        path = self.path / INFLIGHT
        data = path.read_bytes() if path.is_file() else b""
        kept = [line for line in data.splitlines(keepends=True) if self._usable(line)]
        if b"".join(kept) != data:
            with write_aside(path) as handle:
                handle.writelines(kept)
        return kept


def read_manifest(path: Path) -> dict[str, Any]:
    return read_json(
        path / MANIFEST, "completions' manifest", SHAPE, form=FORMAT,
        hint="Point at the folder that `dflash generate --out` wrote.",
    )  # fmt: skip


def template_kwargs_of(settings: dict[str, Any], given: dict[str, Any] | None) -> dict[str, Any]:
    """As the servers were asked: thinking on or off must render alike."""
    thinking = settings.get("thinking", "default")
    asked = {} if thinking == "default" else {"enable_thinking": thinking == "on"}
    return {**asked, **(given or {})}


def shard_paths(path: Path, *, inflight: bool = False) -> list[Path]:
    """The sealed shards in order; for a look at a running job also the rows not yet sealed."""
    paths = []
    for entry in read_manifest(path)["shards"]:
        shard = path / entry["file"]
        size = shard.stat().st_size if shard.is_file() else None
        if size != entry["bytes"]:
            raise InputInvalid(
                f"{shard} has {size} bytes, the manifest says {entry['bytes']}",
                "Run the same `dflash generate` again: it saves what is readable.",
            )
        paths.append(shard)
    if inflight and (path / INFLIGHT).is_file():
        paths.append(path / INFLIGHT)
    return paths


def read_records(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        if path.name == INFLIGHT:  # another process may be in the middle of its last line
            with path.open("rb") as handle:
                yield from (row for line in handle if (row := _record(line)) is not None)
        else:
            for _number, record in read_jsonl(path, "completion shard"):
                yield record


def _record(line: bytes) -> dict[str, Any] | None:
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    usable = isinstance(record, dict) and "id" in record and "messages" in record
    return record if usable else None


def line_of(record: dict[str, Any]) -> bytes:
    """One line of JSON."""
    # Escaped, so that a lone surrogate from a server cannot make the file undecodable.
    return json.dumps(record, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _write_shard(path: Path, lines: list[bytes]) -> dict[str, Any]:
    data = b"".join(lines)
    with write_aside(path) as handle:
        handle.write(data)
    return _entry(path.name, data)


def _entry(name: str, data: bytes) -> dict[str, Any]:
    return {
        "file": name,
        "rows": data.count(b"\n"),
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
