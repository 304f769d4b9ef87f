"""Where completions come from: a folder or an S3 prefix, ours (with a manifest) or plain JSONL.

Files of S3 are fetched by many threads into a folder of their own, a bounded number ahead of the
work, so that the network and the processors are busy at the same time.
"""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import completions, quarantine
from dflash.errors import InputInvalid
from dflash.files import json_object
from dflash.s3 import S3, StoreOptions
from dflash.s3_store import S3Store

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOWNLOADS = 32
AHEAD = 64  # files that may lie here at once
HINT = "Check the address, the credentials and AWS_ENDPOINT_URL; then run the same command again."
NOT_INPUT = (completions.INFLIGHT, quarantine.FILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One input file. `identity` changes when its content does; `rows` is None when not known."""

    file: str
    identity: str
    bytes: int
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A folder's files in order, and the settings that the servers were run with."""

    where: str
    settings: dict[str, Any]
    entries: tuple[Entry, ...]
    path: Path | None = None
    store: S3Store | None = None

    @property
    def rows(self) -> int | None:
        known = [entry.rows for entry in self.entries if entry.rows is not None]
        return sum(known) if len(known) == len(self.entries) else None

    def arriving(self, entries: Sequence[Entry], inbox: Path) -> Iterator[Path]:
        """Each entry as a local file, in order. Those in `inbox` are the caller's to remove."""
        if self.path is not None:
            yield from (self.path / entry.file for entry in entries)
            return
        store = self.store
        assert store is not None
        inbox.mkdir(parents=True, exist_ok=True)

        def fetch(entry: Entry) -> Path:
            digest = entry.identity if entry.rows is not None else ""
            store.fetch(entry.file, entry.bytes, inbox / entry.file, digest)
            return inbox / entry.file

        with ThreadPoolExecutor(DOWNLOADS) as pool:
            waiting: deque[Future[Path]] = deque()
            try:
                for entry in entries:
                    waiting.append(pool.submit(fetch, entry))
                    if len(waiting) >= AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def open_source(where: str, options: StoreOptions | None = None) -> Source:
    """What stands at a path or an s3:// address."""
    if where.startswith(S3):
        return _open_s3(where, options or StoreOptions(connections=DOWNLOADS))
    return _open_folder(Path(where))


def _open_folder(path: Path) -> Source:
    if (path / completions.MANIFEST).is_file():
        manifest = completions.read_manifest(path)
        completions.shard_paths(path)  # each one is there and whole
        return Source(
            where=str(path), settings=manifest["settings"], entries=_listed(manifest), path=path
        )
    found = sorted(p for p in path.glob("*.jsonl") if p.name not in NOT_INPUT)
    inner = sorted(one.parent for one in path.glob(f"[!.]*/{completions.MANIFEST}"))
    if inner and not found:
        return _together(path, inner)
    if not found:
        raise InputInvalid(
            f"{path} holds neither a {completions.MANIFEST} nor *.jsonl files",
            "Point at the folder that `dflash generate --out` wrote, or at one of JSON lines.",
        )
    return Source(where=str(path), settings={}, entries=tuple(map(_counted, found)), path=path)


def _together(path: Path, folders: Sequence[Path]) -> Source:
    """A folder of such folders: what several machines made of one file of prompts."""
    sources = [_open_folder(folder) for folder in folders]
    for folder, source in zip(folders, sources, strict=True):
        if source.settings != sources[0].settings:
            raise InputInvalid(
                f"{folder} was made with other settings than {folders[0]}",
                "One set has one model, one sampling and one way of thinking; tokenize them apart.",
            )
    entries = (
        replace(entry, file=f"{folder.name}/{entry.file}")
        for folder, source in zip(folders, sources, strict=True)
        for entry in source.entries
    )
    return Source(where=str(path), settings=sources[0].settings, entries=tuple(entries), path=path)


def _listed(manifest: dict[str, Any]) -> tuple[Entry, ...]:
    return tuple(
        Entry(file=e["file"], identity=e["sha256"], bytes=e["bytes"], rows=e["rows"])
        for e in manifest["shards"]
    )


def _counted(path: Path) -> Entry:
    digest, rows, size = hashlib.sha256(), 0, 0
    with path.open("rb") as handle:
        while block := handle.read(1 << 20):
            digest.update(block)
            rows += block.count(b"\n")
            size += len(block)
    return Entry(file=path.name, identity=digest.hexdigest(), bytes=size, rows=rows)


def _open_s3(where: str, options: StoreOptions) -> Source:
    store = S3Store(where, options)
    names = store.listed(deep=False)
    if completions.MANIFEST in names:
        manifest = json_object(
            store.read(completions.MANIFEST) or b"", f"{where}/{completions.MANIFEST}",
            "completions' manifest", completions.SHAPE, form=completions.FORMAT,
            hint="Point at what `dflash generate` wrote.",
        )  # fmt: skip
        entries = _listed(manifest)
        if missing := [entry.file for entry in entries if entry.file not in names]:
            raise InputInvalid(
                f"{where} lacks {len(missing)} of {len(entries)} files, first {missing[0]}",
                "Upload them; the manifest lists them.",
            )
        return Source(where=where, settings=manifest["settings"], entries=entries, store=store)
    entries = tuple(
        Entry(file=name, identity=f'"{about.etag}" {about.size}', bytes=about.size, rows=None)
        for name, about in sorted(names.items())
        if name.endswith(".jsonl") and name not in NOT_INPUT
    )
    if not entries:
        raise InputInvalid(
            f"{where} holds neither a {completions.MANIFEST} nor *.jsonl objects", HINT
        )
    return Source(where=where, settings={}, entries=entries, store=store)
