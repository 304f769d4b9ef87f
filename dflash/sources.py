"""Where completions come from: a folder or an S3 prefix, ours (with a manifest) or plain JSONL.

Files of S3 are fetched by many threads into a folder of their own, a bounded number ahead of the
work, so that the network and the processors are busy at the same time.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import completions
from dflash.errors import DflashError, InputInvalid
from dflash.files import write_aside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DOWNLOADS = 32
AHEAD = 64  # files that may lie here at once
TRIES = 3
S3 = "s3://"
HINT = "Check the address, the credentials and AWS_ENDPOINT_URL; then run the same command again."
NOT_INPUT = (completions.INFLIGHT, completions.FAILED)


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
    bucket: Bucket | None = None

    @property
    def rows(self) -> int | None:
        known = [entry.rows for entry in self.entries if entry.rows is not None]
        return sum(known) if len(known) == len(self.entries) else None

    def arriving(self, entries: Sequence[Entry], inbox: Path) -> Iterator[Path]:
        """Each entry as a local file, in order. Those in `inbox` are the caller's to remove."""
        if self.path is not None:
            yield from (self.path / entry.file for entry in entries)
            return
        assert self.bucket is not None
        inbox.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(DOWNLOADS) as pool:
            waiting: deque[Future[Path]] = deque()
            try:
                for entry in entries:
                    waiting.append(pool.submit(self.bucket.fetch, entry, inbox / entry.file))
                    if len(waiting) >= AHEAD:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()


def open_source(where: str) -> Source:
    """What stands at a path or an s3:// address."""
    return _open_s3(where) if where.startswith(S3) else _open_folder(Path(where))


def _open_folder(path: Path) -> Source:
    if (path / completions.MANIFEST).is_file():
        manifest = completions.read_manifest(path)
        completions.shard_paths(path)  # each one is there and whole
        return Source(
            where=str(path), settings=manifest["settings"], entries=_listed(manifest), path=path
        )
    found = sorted(p for p in path.glob("*.jsonl") if p.name not in NOT_INPUT)
    if not found:
        raise InputInvalid(
            f"{path} holds neither a {completions.MANIFEST} nor *.jsonl files",
            "Point at the folder that `dflash generate --out` wrote, or at one of JSON lines.",
        )
    return Source(where=str(path), settings={}, entries=tuple(map(_counted, found)), path=path)


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


class Bucket:
    """One prefix of a bucket. boto3's client may be used by many threads."""

    def __init__(self, where: str) -> None:
        name, _, prefix = where.removeprefix(S3).partition("/")
        if not name:
            raise InputInvalid(f"{where} names no bucket", "Write it as s3://bucket/folder.")
        self.where, self.name = where.rstrip("/"), name
        self.prefix = prefix.rstrip("/") + "/" if prefix else ""
        try:
            import boto3
            from botocore.config import Config
        except ImportError:
            raise DflashError("boto3 is not installed here", "Install it to read s3://.") from None
        config = Config(
            connect_timeout=10, read_timeout=60, max_pool_connections=DOWNLOADS,
            retries={"mode": "standard", "max_attempts": 4},
        )  # fmt: skip
        try:
            self._client: Any = boto3.client("s3", config=config)
        except _faults() as error:  # no region, a malformed endpoint
            raise self._failed("", error) from error

    def names(self) -> dict[str, dict[str, Any]]:
        """Objects directly under the prefix, by name."""
        found = {}
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.name, Prefix=self.prefix, Delimiter="/"
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    found[entry["Key"].removeprefix(self.prefix)] = entry
        except _faults() as error:
            raise self._failed("", error) from error
        return found

    def read(self, name: str) -> bytes:
        """A whole object; a body that breaks off is asked for again."""
        for attempt in range(TRIES):
            try:
                answer = self._client.get_object(Bucket=self.name, Key=self.prefix + name)
                data: bytes = answer["Body"].read()
            except _faults() as error:
                if attempt == TRIES - 1 or hasattr(error, "response"):
                    raise self._failed(name, error) from error
            else:
                return data
        raise AssertionError

    def fetch(self, entry: Entry, to: Path) -> Path:
        data = self.read(entry.file)
        if len(data) != entry.bytes:
            raise InputInvalid(
                f"{self.where}/{entry.file} has {len(data)} bytes, {entry.bytes} were expected",
                "It changed or was cut while it was uploaded: upload it again.",
            )
        with write_aside(to) as handle:
            handle.write(data)
        return to

    def _failed(self, name: str, error: Exception) -> DflashError:
        said = " ".join(str(error).split())[:200]
        return DflashError(f"cannot read {self.where}{'/' if name else ''}{name}: {said}", HINT)


def _faults() -> tuple[type[Exception], ...]:
    from boto3.exceptions import Boto3Error
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    return (BotoCoreError, Boto3Error, ClientError, HTTPClientError, OSError, ValueError)


def _open_s3(where: str) -> Source:
    bucket = Bucket(where)
    names = bucket.names()
    if completions.MANIFEST in names:
        try:
            manifest = json.loads(bucket.read(completions.MANIFEST))
        except ValueError as error:
            raise InputInvalid(f"{where}/{completions.MANIFEST} is no JSON: {error}") from error
        if manifest.get("format") != completions.FORMAT:
            raise InputInvalid(
                f"{where}/{completions.MANIFEST} has format {manifest.get('format')!r}, "
                f"not {completions.FORMAT}",
                "Point at what `dflash generate` wrote.",
            )
        entries = _listed(manifest)
        if missing := [entry.file for entry in entries if entry.file not in names]:
            raise InputInvalid(
                f"{where} lacks {len(missing)} of {len(entries)} files, first {missing[0]}",
                "Upload them; the manifest lists them.",
            )
        return Source(where=where, settings=manifest["settings"], entries=entries, bucket=bucket)
    entries = tuple(
        Entry(
            file=name, identity=f"{about['ETag']} {about['Size']}", bytes=about["Size"], rows=None
        )
        for name, about in sorted(names.items())
        if name.endswith(".jsonl") and name not in NOT_INPUT
    )
    if not entries:
        raise InputInvalid(
            f"{where} holds neither a {completions.MANIFEST} nor *.jsonl objects", HINT
        )
    return Source(where=where, settings={}, entries=entries, bucket=bucket)
