"""Bodies of objects, whole or a range, to and from S3.

obstore carries them where it is installed: it costs less processor time, and nothing of it holds
Python up. Whatever fails there is done again by boto3, which repeats, and says what is wrong; a
store with which only boto3 gets on is left to it.
"""

from __future__ import annotations

import base64
import contextlib
import re
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from dflash.s3 import CONNECT_S, READ_S, TRIES, broken_off

if TYPE_CHECKING:
    from dflash.s3 import StoreOptions

WHOLE_S = 600
"""For one body, however slow the line."""
PLAIN = re.compile(r"[\w.=-]+(/[\w.=-]+)*", re.ASCII)
"""Keys that obstore sends as they are; it has its own way with other characters."""
STRIKES = 3


class Bodies:
    """Of one bucket. Used by many threads."""

    def __init__(
        self, client: Any, credentials: Any, bucket: str, options: StoreOptions, *, fast: bool
    ) -> None:
        self._client, self._bucket = client, bucket
        can = fast and credentials is not None
        self._fast = _obstore(client, credentials, bucket, options) if can else None
        self._failures = 0

    def get(
        self, key: str, *, start: int = 0, end: int | None = None, etag: str = ""
    ) -> bytes | memoryview:
        """The object, or its bytes from `start` to before `end`; only as `etag` says, if given."""
        data: bytes | memoryview = self._tried("get", key, start, end, etag)
        return data

    def put(self, key: str, data: bytes, digest: str) -> None:
        """Store it with its SHA-256, which the store verifies where it can."""
        self._tried("put", key, data, digest)

    def _tried(self, verb: str, key: str, *args: Any) -> Any:
        fast = self._fast if PLAIN.fullmatch(key) and self._failures < STRIKES else None
        if fast is not None:
            from obstore.exceptions import BaseError

            with contextlib.suppress(BaseError, OSError):
                return getattr(fast, verb)(key, *args)
        answer = getattr(self, f"_{verb}")(key, *args)
        if fast is not None:
            self._failures += 1  # boto3 did what it could not
        return answer

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

    def _put(self, key: str, data: bytes, digest: str) -> None:
        self._client.put_object(
            Bucket=self._bucket, Key=key, Body=data, Metadata={"sha256": digest},
            ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
        )  # fmt: skip


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

    def put(self, key: str, data: bytes, digest: str) -> None:
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
        frozen = credentials.get_frozen_credentials()  # renewed by botocore when they run out
        return {
            "access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key,
            "token": frozen.token, "expires_at": datetime.now(UTC) + timedelta(minutes=5),
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
