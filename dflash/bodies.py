"""Bodies of objects, whole or a range, to and from S3.

Three carriers, by what costs least processor time. Large ones go by `dflash.signed`: obstore would
hash once more what is sent, and hold all of what comes. Small ones and ranges go by obstore, where
it is installed. Whatever fails there is done again by boto3, which repeats, and says what is wrong.
A carrier that fails where boto3 does not is left alone for a while.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import urlsplit

from dflash.s3 import CONNECT_S, READ_S, TRIES, broken_off
from dflash.signed import Signed

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash.s3 import StoreOptions

WHOLE_S = 600
"""For one body, however slow the line."""
PLAIN = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)
"""Keys that obstore sends as they are; it has its own way with other characters."""
STRIKES, REST_S = 3, 300.0
LARGE = 512 << 10
"""From here on hashing and copying cost more than what Python does for a request."""


class Trust:
    """In one carrier. After some failures in a row it rests; then one request tries it first."""

    def __init__(self) -> None:
        self.failures = 0
        self._until = 0.0

    def holds(self) -> bool:
        """Whether this request is to go that way."""
        if self.failures < STRIKES:
            return True
        now = time.monotonic()
        due = now >= self._until
        if due:
            self._until = now + REST_S  # the others wait for what becomes of this one
        return due

    def note(self, *, failed: bool) -> None:
        self.failures = self.failures + 1 if failed else 0
        self._until = time.monotonic() + REST_S


class Bodies:
    """Of one bucket. Used by many threads."""

    def __init__(
        self, client: Any, credentials: Any, bucket: str, options: StoreOptions, *, fast: bool
    ) -> None:
        self._client, self._bucket = client, bucket
        can = fast and credentials is not None
        self._fast = _obstore(client, credentials, bucket, options) if can else None
        self._signed = Signed(client, credentials, bucket, options) if can else None
        self.in_obstore, self.in_signed = Trust(), Trust()

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, etag: str = ""
    ) -> bytes | memoryview:
        """The object, or its bytes from `start` to before `end`; only as `etag` says, if given."""
        fast = self._fast if PLAIN.fullmatch(key) else None
        data: bytes | memoryview = _tried(
            self.in_obstore,
            (lambda: fast.get(key, start, end, etag)) if fast else None,
            lambda: self._get(key, start, end, etag),
        )
        return data

    def fetch(self, key: str, size: int, handle: BinaryIO) -> tuple[int, str]:
        """The object into a new file, as it comes: how much came, and its SHA-256."""
        if size < LARGE or self._signed is None:
            return _written(self.get(key), handle)
        signed = self._signed
        found: tuple[int, str] = _tried(
            self.in_signed,
            lambda: signed.fetch(key, handle),
            lambda: _written(self._get(key, 0, None, ""), handle),
        )
        return found

    def listed(self, prefix: str, delimiter: str) -> list[tuple[str, int, str]]:
        """Key, size and ETag of each object; a thousand arrive with one request."""
        signed = self._signed
        found: list[tuple[str, int, str]] = _tried(
            self.in_signed,
            (lambda: signed.listed(prefix, delimiter)) if signed else None,
            lambda: self._listed(prefix, delimiter),
        )
        return found

    def put(self, key: str, data: bytes | memoryview, digest: str) -> None:
        """Store it with its SHA-256, which the store verifies where it can."""
        large = len(data) >= LARGE
        fast = self._signed if large else self._fast if PLAIN.fullmatch(key) else None
        _tried(
            self.in_signed if large else self.in_obstore,
            (lambda: fast.put(key, data, digest)) if fast else None,
            lambda: self._put(key, data, digest),
        )

    def _get(self, key: str, start: int, end: int | None, etag: str) -> bytes:
        about: dict[str, str] = {"IfMatch": f'"{etag}"'} if etag else {}
        if start or end is not None:
            about["Range"] = f"bytes={start}-{'' if end is None else end - 1}"
        for attempt in range(TRIES):
            try:
                body = self._client.get_object(Bucket=self._bucket, Key=key, **about)["Body"]
                with contextlib.closing(body):
                    data: bytes = body.read()
                    return data
            except broken_off():
                if attempt == TRIES - 1:
                    raise
                time.sleep(0.2 * 2**attempt)
        raise AssertionError

    def _listed(self, prefix: str, delimiter: str) -> list[tuple[str, int, str]]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix, Delimiter=delimiter
        )
        return [
            (entry["Key"], entry["Size"], entry["ETag"].strip('"'))
            for page in pages
            for entry in page.get("Contents", ())
        ]

    def _put(self, key: str, data: bytes | memoryview, digest: str) -> None:
        self._client.put_object(
            Bucket=self._bucket, Key=key, Body=bytes(data), Metadata={"sha256": digest},
            ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
        )  # fmt: skip


def _tried(trust: Trust, fast: Callable[[], Any] | None, sure: Callable[[], Any]) -> Any:
    """What the first says, else what the second does."""
    if fast is None or not trust.holds():
        return sure()
    with contextlib.suppress(*_failures()):
        answer = fast()
        trust.note(failed=False)
        return answer
    answer = sure()
    trust.note(failed=True)  # boto3 did what the other could not
    return answer


def _written(data: bytes | memoryview, handle: BinaryIO) -> tuple[int, str]:
    handle.seek(0)
    handle.truncate()  # another may have begun here
    return handle.write(data), hashlib.sha256(data).hexdigest()


def _failures() -> tuple[type[Exception], ...]:
    """What the fast carriers raise: the store's, and its XML's; FileNotFoundError is obstore's for
    an object that is not there. Any other OSError is the disk's."""
    from botocore.exceptions import BotoCoreError
    from urllib3.exceptions import HTTPError

    try:
        from obstore.exceptions import BaseError
    except ImportError:
        return BotoCoreError, HTTPError, SyntaxError, ValueError
    return BotoCoreError, HTTPError, SyntaxError, ValueError, BaseError, FileNotFoundError


class _Obstore:
    """The same two verbs; raises obstore's errors."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def get(self, key: str, start: int, end: int | None, etag: str) -> memoryview:
        options: dict[str, Any] = {"if_match": f'"{etag}"'} if etag else {}
        if end is not None:
            options["range"] = (start, end)
        elif start:
            options["range"] = {"offset": start}
        return memoryview(self._store.get(key, options=options).bytes())

    def put(self, key: str, data: bytes | memoryview, digest: str) -> None:
        self._store.put(key, data, attributes={"sha256": digest}, use_multipart=False)


def _obstore(client: Any, credentials: Any, bucket: str, options: StoreOptions) -> _Obstore | None:
    """Set up as the client is: the same address, region and credentials. None without obstore."""
    try:
        from obstore.store import S3Store
    except ImportError:
        return None
    signed = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "k"})
    address = urlsplit(signed)
    by_path = address.path.startswith(f"/{bucket}/")

    def current() -> Any:
        """Asked for each request, as what is told to end at once is not kept: botocore renews
        them, and whoever hands keys to this job may have changed them."""
        frozen = credentials.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key,
            "token": frozen.token, "expires_at": datetime.now(UTC),
        }  # fmt: skip

    return _Obstore(
        S3Store(
            bucket,
            endpoint=f"{address.scheme}://{address.netloc}",
            region=client.meta.region_name,
            virtual_hosted_style_request=not by_path,
            checksum_algorithm="SHA256",
            credential_provider=current,
            client_options={
                "allow_http": address.scheme == "http",
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "read_timeout": timedelta(seconds=READ_S),
                "timeout": timedelta(seconds=WHOLE_S),
                "pool_max_idle_per_host": str(2 * options.connections),
            },
            retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=READ_S)},
        )
    )
