"""A snapshot in an S3 object, written with If-None-Match and If-Match."""

from __future__ import annotations

import base64
import hashlib
import secrets
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from runbook.errors import Exit, RunbookError
from runbook.sharing.place import OBJECT, Found, Moved, Place, ignores_conditions

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED = (409, 412)
BOGUS = '"00000000000000000000000000000000"'


class S3Store:
    """One object of a bucket."""

    def __init__(self, client: Any, bucket: str, key: str) -> None:
        self._client = client
        self._bucket = bucket
        self._key = key
        self.label = f"s3://{bucket}/{key}"

    @classmethod
    def open(cls, place: Place) -> Self:
        """Credentials come from where every S3 tool has them; none are kept here."""
        from dflash.s3 import StoreOptions, connect

        parts = urlsplit(place.url)
        key = parts.path.lstrip("/")
        if not parts.netloc:
            raise RunbookError(f"{place.url} names no bucket.", hint="Write s3://BUCKET/KEY.")
        if not key or key.endswith("/"):
            key += OBJECT
        options = StoreOptions(
            endpoint=place.endpoint, region=place.region, addressing=place.addressing, connections=4
        )
        with explained(place.url):
            client = connect(options, place.url)
        return cls(client, parts.netloc, key)

    def read(self) -> Found | None:
        """The object with its ETag, and its age by the store's clock."""
        with explained(self.label):
            try:
                answer = self._client.get_object(Bucket=self._bucket, Key=self._key)
            except self._client.exceptions.NoSuchKey:
                return None
            data = answer["Body"].read()
        return Found(data=data, tag=answer["ETag"], age_s=_age(answer))

    def write(self, data: bytes, *, over: str | None) -> None:
        """One conditional PUT. Raises Moved when the store says that its condition failed."""
        condition = {"IfNoneMatch": "*"} if over is None else {"IfMatch": over}
        self._put(self._key, data, condition)

    def beside(self, suffix: str) -> S3Store:
        """A neighbouring key."""
        return S3Store(self._client, self._bucket, f"{self._key}.{suffix}")

    def prove_conditions(self) -> None:
        """Tries both conditions on an object of our own that nobody else knows."""
        key = f"{self._key}.probe-{secrets.token_hex(8)}"
        try:
            self._put(key, b"conditional writes are tried here\n", {})
            for condition in ({"IfMatch": BOGUS}, {"IfNoneMatch": "*"}):
                with suppress(Moved):
                    self._put(key, b"this must not be written\n", condition)
                    raise ignores_conditions(self.label)
        finally:
            with suppress(Exception):  # may not be allowed to us; it is a few bytes
                self._client.delete_object(Bucket=self._bucket, Key=key)

    def _put(self, key: str, data: bytes, condition: dict[str, str]) -> None:
        from botocore.exceptions import ClientError

        from dflash.s3 import status_of

        digest = base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
        with explained(self.label):
            try:
                self._client.put_object(
                    Bucket=self._bucket,
                    Key=key,
                    Body=data,
                    ContentMD5=digest,
                    ContentType="application/octet-stream",
                    **condition,
                )
            except ClientError as error:
                if (condition and status_of(error) in REFUSED) or _gone(error, condition):
                    raise Moved from error
                raise


def _gone(error: Any, condition: dict[str, str]) -> bool:
    """If-Match on an object that is no longer there."""
    return "IfMatch" in condition and error.response.get("Error", {}).get("Code") == "NoSuchKey"


def _age(answer: dict[str, Any]) -> float | None:
    now = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
    then = answer.get("LastModified")
    if not now or not isinstance(then, datetime):
        return None
    return max(0.0, (parsedate_to_datetime(now).astimezone(UTC) - then).total_seconds())


@contextmanager
def explained(label: str) -> Iterator[None]:
    """The store's refusals with the exit code of each: what it is, and what to do."""
    from dflash import s3
    from dflash.errors import DflashError

    try:
        with s3.explained(label):
            yield
    except s3.NoAccess as error:
        raise RunbookError(
            f"{error.message}.", hint=error.hint, exit_code=Exit.NEEDS_AUTH
        ) from error.__cause__
    except s3.NoAnswer as error:
        raise RunbookError(
            f"{error.message}.",
            hint="Whether it was written is not known; repeat the command, that is safe.",
            exit_code=Exit.UNKNOWN,
        ) from error.__cause__
    except DflashError as error:
        raise RunbookError(f"{error.message}.", hint=error.hint) from error.__cause__
