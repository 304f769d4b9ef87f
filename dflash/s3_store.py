"""A prefix in a bucket as a store of objects: listing, digests, and files that go on in the middle.

Files up to the size of a part travel whole, larger ones in parts, several at a time. A killed
transfer of a large file goes on: uploads with the parts that the store has and whose MD5 is that of
the file here, downloads as `dflash.ranged` says.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from dflash.bodies import Bodies
from dflash.errors import DflashError, InputInvalid
from dflash.files import write_aside
from dflash.ranged import PartialFile
from dflash.s3 import StoreOptions, code_of, connection, explained, split, status_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_PARTS = 10_000  # S3 takes no more of one file


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a listing says of an object."""

    size: int
    etag: str = ""


def require_same(what: str, *, size: int, digest: str, found_size: int, found: str) -> None:
    """Raises InputInvalid unless what arrived is what was uploaded; an empty digest claims none."""
    if found_size != size or (digest and found != digest):
        raise InputInvalid(
            f"{what} is not what was uploaded: {found_size} bytes of {size}, "
            f"SHA-256 {found[:12]} for {digest[:12] or 'none'}",
            "It was damaged or overwritten there: upload it again with `dflash put`.",
        )


class S3Store:
    """Many threads may use it."""

    def __init__(self, url: str, options: StoreOptions, *, fast: bool = True) -> None:
        self.bucket, prefix = split(url)
        self.where = url.rstrip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._options = options
        self._client, keys = connection(options, self.where)
        with explained(self.where):
            self._bodies = Bodies(self._client, keys, self.bucket, options, fast=fast)

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def listed(self, *, deep: bool = True, below: str = "") -> dict[str, Listed]:
        """Every object below the prefix, or directly in it."""
        with explained(self.where):
            objects = self._bodies.listed(self._prefix + below, "" if deep else "/")
        found = {}
        for key, size, etag in objects:
            name = key.removeprefix(self._prefix)
            if name and not name.endswith("/"):  # consoles make such, for folders
                found[name] = Listed(size=size, etag=etag)
        return found

    def digest(self, name: str) -> str:
        """The SHA-256 that it was stored with; empty for what others stored."""
        with explained(f"{self.where}/{name}"):
            answer = self._client.head_object(Bucket=self.bucket, Key=self._prefix + name)
        return str(answer.get("Metadata", {}).get("sha256", ""))

    def read(self, name: str) -> bytes | None:
        """A whole object; None when it is not there."""
        try:
            with explained(f"{self.where}/{name}"):
                return bytes(self._bodies.get(self._prefix + name))
        except DflashError as error:
            if error.__cause__ is not None and _is_missing(error.__cause__):
                return None
            raise

    def write(self, name: str, data: bytes) -> None:
        with explained(f"{self.where}/{name}"):
            self._bodies.put(self._prefix + name, data, hashlib.sha256(data).hexdigest())

    def remove(self, name: str) -> None:
        with explained(f"{self.where}/{name}"):
            self._client.delete_object(Bucket=self.bucket, Key=self._prefix + name)

    def send(self, path: Path, name: str, size: int, digest: str, data: memoryview | None) -> None:
        """`data`: the file's content, where it is small and was read already."""
        key = self._prefix + name
        with explained(f"{self.where}/{name}"):
            if size <= self._options.part:
                content = path.read_bytes() if data is None else data
                self._bodies.put(key, content, digest)
                return
            self._send_parts(path, key, size, digest)

    def fetch(self, name: str, size: int, path: Path, digest: str) -> str:
        """The object as a file that appears whole and right; its SHA-256. Who fetches many makes
        their names last by `sync_folder` in the end."""
        with explained(f"{self.where}/{name}"):
            if size > self._options.part:
                return self._fetch_parts(name, size, path, digest)
            with write_aside(path, named=False) as handle:
                arrived, found = self._bodies.fetch(self._prefix + name, size, handle)
                require_same(
                    f"{self.where}/{name}", size=size, digest=digest, found_size=arrived,
                    found=found,
                )  # fmt: skip
        return found

    def cancel(self) -> None:
        """Give up large files on their way. What arrived stays, for the next time."""
        if "_pool" in self.__dict__:
            self._pool.shutdown(wait=True, cancel_futures=True)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._options.connections, thread_name_prefix="parts")

    def _ranges(self, size: int) -> Iterator[tuple[int, int]]:
        step = max(self._options.part, -(-size // MOST_PARTS))
        for start in range(0, size, step):
            yield start, min(start + step, size)

    def _fetch_parts(self, name: str, size: int, path: Path, digest: str) -> str:
        """Ranges by many threads; behind them one hash over the whole, in order."""
        key, what = self._prefix + name, f"{self.where}/{name}"
        answer = self._client.head_object(Bucket=self.bucket, Key=key)
        etag, there = answer["ETag"].strip('"'), answer["ContentLength"]
        require_same(what, size=size, digest="", found_size=there, found="not asked")
        with PartialFile(path, size=size, tag=etag) as partial:

            def bring(start: int, end: int) -> None:
                if partial.has(start, end):
                    return
                partial.write(start, self._bodies.get(key, start=start, end=end, etag=etag))

            ranges = list(self._ranges(size))
            coming = [self._pool.submit(bring, *one) for one in ranges]
            seen = hashlib.sha256()
            try:
                for one, (start, end) in zip(coming, ranges, strict=True):
                    one.result()
                    seen.update(partial.read(start, end))
            except BaseException:
                for one in coming:
                    one.cancel()
                raise
            found = seen.hexdigest()
            if digest and found != digest:
                partial.drop()
            require_same(what, size=size, digest=digest, found_size=there, found=found)
            partial.finish()
            return found

    def _send_parts(self, path: Path, key: str, size: int, digest: str) -> None:
        """With the parts of an earlier try, if all that the store has of it are of this file."""
        ranges = list(self._ranges(size))
        for upload, there in self._left_uploads(key):
            if self._finish_upload(path, key, ranges, digest, upload, there):
                return
        upload = self._client.create_multipart_upload(
            Bucket=self.bucket, Key=key, Metadata={"sha256": digest}
        )["UploadId"]
        self._finish_upload(path, key, ranges, digest, upload, {})

    def _finish_upload(
        self, path: Path, key: str, ranges: list[tuple[int, int]], digest: str, upload: str,
        there: dict[int, str],
    ) -> bool:  # fmt: skip
        """Bring the parts that are missing; False when it was begun for another content."""
        about = {"Bucket": self.bucket, "Key": key, "UploadId": upload}

        def bring(number: int, start: int, end: int) -> str:
            with path.open("rb") as handle:
                handle.seek(start)
                data = handle.read(end - start)
            md5 = hashlib.md5(data, usedforsecurity=False)
            known = there.get(number)
            if known == md5.hexdigest():
                return known
            if known is not None:
                return ""
            answer = self._client.upload_part(
                **about, PartNumber=number, Body=data,
                ContentMD5=base64.b64encode(md5.digest()).decode(),
            )  # fmt: skip
            return str(answer["ETag"]).strip('"')

        going = [self._pool.submit(bring, n, *one) for n, one in enumerate(ranges, start=1)]
        try:
            tags = [one.result() for one in going]
        except BaseException:
            for one in going:
                one.cancel()
            raise
        if not all(tags) or max(there, default=0) > len(ranges):
            self._client.abort_multipart_upload(**about)
            return False
        parts = [{"PartNumber": n, "ETag": f'"{tag}"'} for n, tag in enumerate(tags, start=1)]
        self._client.complete_multipart_upload(**about, MultipartUpload={"Parts": parts})
        if not there:
            return True
        # The digest was noted when the upload was begun: the file may be another since then.
        found = self._client.head_object(Bucket=self.bucket, Key=key)
        return bool(found.get("Metadata", {}).get("sha256") == digest)

    def _left_uploads(self, key: str) -> Iterator[tuple[str, dict[int, str]]]:
        """Unfinished uploads of this key with the MD5s of their parts; those without are ended."""
        answer = self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=key)
        for upload in answer.get("Uploads", ()):
            if upload["Key"] != key:
                continue
            about = {"Bucket": self.bucket, "Key": key, "UploadId": upload["UploadId"]}
            pages = self._client.get_paginator("list_parts").paginate(**about)
            there = {
                part["PartNumber"]: part["ETag"].strip('"')
                for page in pages
                for part in page.get("Parts", ())
            }
            if there:
                yield upload["UploadId"], there
            else:
                self._client.abort_multipart_upload(**about)


def _is_missing(error: BaseException) -> bool:
    return hasattr(error, "response") and (
        code_of(error) == "NoSuchKey" or (status_of(error) == 404 and not code_of(error))
    )
