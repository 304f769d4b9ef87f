"""The one way to S3: how a store is reached, a botocore client for it, and its refusals as ours.

Everything of ours that speaks to S3 takes its client here, so that endpoint, region, addressing,
repetitions, time limits and checksums are the same everywhere. Credentials come from where every
S3 tool has them. botocore is imported when a client is made.
"""

from __future__ import annotations

import contextlib
import gc
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from dflash import keys
from dflash.errors import EXIT_KEYS, DflashError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

S3 = "s3://"
ADDRESSING = ("auto", "path", "virtual")
CONNECT_S, READ_S = 10, 60
TRIES = 5
EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
AGAIN = "Run the same command again: what arrived is kept."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is reached, and how hard it is worked."""

    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    connections: int = 32
    part: int = 8 << 20
    """Larger files travel in parts of this size, several at a time."""
    short_lived_only: bool = False


class NoAccess(DflashError):
    """No credentials, or the store refuses those that we have."""


class KeysExpired(NoAccess):
    """The keys were good and have ended. With new ones the same request goes through."""

    exit_code = EXIT_KEYS


class NoAnswer(DflashError):
    """The store could not be reached or has trouble: what came of the request is not known."""


class NotThere(DflashError):
    """No such bucket, or no such object."""


def split(url: str) -> tuple[str, str]:
    """Bucket, and the key or prefix, of an address."""
    bucket, _, key = url.removeprefix(S3).partition("/")
    if not url.startswith(S3) or not bucket:
        raise UsageError(f"{url} names no bucket", "Write s3://BUCKET/FOLDER.")
    return bucket, key.strip("/")


def connect(options: StoreOptions, where: str) -> Any:
    """A client whose requests are repeated a few times and do not wait for ever. Many threads may
    use it."""
    return connection(options, where)[0]


def connection(options: StoreOptions, where: str) -> tuple[Any, Any]:
    """A client, and the credentials that it signs with: None when there are none."""
    try:
        from botocore.config import Config
    except ImportError:
        raise DflashError("boto3 is not installed here", "Install it to use s3://.") from None
    style: Any = {"addressing_style": options.addressing}
    config = Config(
        s3=style, signature_version="s3v4", connect_timeout=CONNECT_S, read_timeout=READ_S,
        retries={"mode": "standard", "total_max_attempts": TRIES},
        max_pool_connections=2 * options.connections,  # small files, and parts of large ones
        # Checksums in trailers are not known everywhere. Ours travel as headers, and every file
        # carries its SHA-256.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )  # fmt: skip
    with explained(where):
        session = keys.boto_session()
        found = session.get_credentials()
        if options.short_lived_only and found is not None and not found.token:
            raise NoAccess(
                f"{where}: the keys here have no session token, so they are long-lived",
                "Give short-lived ones with AWS_SESSION_TOKEN; or, where that risk is taken, "
                "set `long_lived_keys: true` on the step.",
            )
        with _collection_paused():
            client = session.create_client(
                "s3", endpoint_url=options.endpoint or None, region_name=options.region or None,
                config=config,
            )  # fmt: skip
        return client, found


@contextlib.contextmanager
def _collection_paused() -> Iterator[None]:
    """The collector takes a third of the time that a client takes, going again and again over what
    it parses, none of which is garbage."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


def broken_off() -> tuple[type[Exception], ...]:
    """What a body raises that ends too early; botocore repeats requests, not bodies."""
    from botocore import exceptions as boto

    return (boto.HTTPClientError, boto.IncompleteReadError, boto.FlexibleChecksumError)


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """The store's refusals as ours, each with the object and the next step; a disk's fault stays
    one."""
    from botocore import exceptions as boto

    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise NoAccess(
            f"{where}: no credentials were found for it",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE: in a runbook, the "
            "task's `secrets:`.",
        ) from error
    except boto.ClientError as error:
        raise _refused(where, error) from error
    except (boto.HTTPClientError, boto.ConnectionError) as error:
        raise NoAnswer(f"{where} gives no answer: {short(error)}", AGAIN) from error
    except (boto.BotoCoreError, ValueError) as error:
        raise DflashError(
            f"{where}: {short(error)}", "Correct the address, the region or the endpoint."
        ) from error


def status_of(error: Any) -> int:
    """The HTTP status of what boto3 raised."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: Any) -> str:
    """The store's own word for it."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _time_there(error: Any) -> float:
    """The end of the second in which it was refused, by the store's clock; 0 when it does not say.
    Ours may be behind."""
    said = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    with contextlib.suppress(ValueError):
        return parsedate_to_datetime(said).timestamp() + 1
    return 0.0


def _refused(where: str, error: Any) -> DflashError:
    status, code = status_of(error), code_of(error)
    # A HEAD request is refused without a word, and some stores no longer know keys that ended.
    if code in EXPIRED or (status in (400, 401, 403) and keys.have_ended(_time_there(error))):
        return KeysExpired(
            f"{where}: the keys have run out ({code})",
            "Run the task again: it gets fresh ones, and what was moved is kept.",
        )
    if status in (401, 403):
        return NoAccess(
            f"{where}: the store refuses us ({code})",
            "Check the credentials and what they may do: list, get and put below this prefix.",
        )
    if code == "NoSuchBucket":
        return NotThere(
            f"{where}: there is no such bucket", "Make it, or name another; see --endpoint."
        )
    if status == 404:
        return NotThere(f"{where} is not there", "Upload it again with `dflash put`.")
    if status >= 500 or status == 429:
        return NoAnswer(f"{where}: the store has trouble ({status} {code})", AGAIN)
    return DflashError(f"{where}: {short(error)}", AGAIN)


def short(error: BaseException) -> str:
    """One line of an error's text."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
