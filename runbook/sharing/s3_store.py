"""A snapshot in an S3 object, written with If-None-Match and If-Match."""

from __future__ import annotations

import base64
import hashlib
import secrets
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

from runbook.errors import Exit, RunbookError
from runbook.sharing.place import OBJECT, Found, Moved, Place, ignores_conditions

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED = (409, 412)
BOGUS = '"00000000000000000000000000000000"'
CONNECT_S, READ_S, TRIES = 10, 60, 4


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
        import boto3
        from botocore.config import Config

        parts = urlsplit(place.url)
        key = parts.path.lstrip("/")
        if not parts.netloc:
            raise RunbookError(f"{place.url} names no bucket.", hint="Write s3://BUCKET/KEY.")
        if not key or key.endswith("/"):
            key += OBJECT
        config = Config(
            s3=cast("Any", {"addressing_style": place.addressing}),
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"total_max_attempts": TRIES, "mode": "standard"},
            # Trailing checksums are not known everywhere; Content-MD5 is, and our own digest
            # is in the head of the snapshot.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        with explained(place.url):
            client = boto3.Session().client(
                "s3",
                endpoint_url=place.endpoint or None,
                region_name=place.region or None,
                config=config,
            )
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
                if (condition and _status(error) in REFUSED) or _gone(error, condition):
                    raise Moved from error
                raise


def _status(error: Any) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


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
    """The store's refusals as ours: what it is, and what to do."""
    from botocore import exceptions as boto

    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise RunbookError(
            f"{label}: no credentials were found for it.",
            hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE.",
            exit_code=Exit.NEEDS_AUTH,
        ) from error
    except boto.ClientError as error:
        raise _refused(label, error) from error
    except (boto.HTTPClientError, boto.ConnectionError) as error:
        raise RunbookError(
            f"{label} gives no answer: {error}",
            hint="Whether it was written is not known; repeat the command, that is safe.",
            exit_code=Exit.UNKNOWN,
        ) from error
    except (boto.BotoCoreError, ValueError) as error:
        raise RunbookError(
            f"{label}: {error}", hint="Correct the address or its options."
        ) from None


def _refused(label: str, error: Any) -> RunbookError:
    status, said = _status(error), error.response.get("Error", {})
    code = said.get("Code", "")
    if status in (401, 403):
        return RunbookError(
            f"{label}: the store refuses us ({code}).",
            hint="Check the credentials and what they may do: get and put on this key.",
            exit_code=Exit.NEEDS_AUTH,
        )
    if status == 404:
        return RunbookError(
            f"{label}: there is no such bucket ({code}).",
            hint="Make it, or name another; --endpoint-url says which store.",
        )
    if status >= 500 or status == 429:
        return RunbookError(
            f"{label}: the store has trouble ({status} {code}).",
            hint="Whether it was written is not known; repeat the command, that is safe.",
            exit_code=Exit.UNKNOWN,
        )
    return RunbookError(f"{label}: {code}: {said.get('Message', error)}")
