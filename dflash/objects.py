"""Objects under one address: a prefix in a bucket, or a folder (`file://`) that stands in for one.

Credentials come from where every S3 tool has them; endpoint, region and addressing may be said.
What boto3 raises becomes one message here that names the object and the next step.
"""

from __future__ import annotations

import base64
import contextlib
import shutil
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO

from dflash.errors import DflashError, UsageError
from dflash.files import ASIDE_SUFFIX, lock_folder, sha256_file, write_aside

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

S3, FILE = "s3://", "file://"
MANIFEST = ".objects.json"
FORMAT = "dflash-objects/1"
ADDRESSING = ("auto", "path", "virtual")
BLOCK = 1 << 20
TRIES = 4  # of a body that breaks off; requests are repeated by botocore
AGAIN = "Run the same command again: what arrived is kept."


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """How a store is reached, and how hard it is worked."""

    endpoint: str = ""
    region: str = ""
    addressing: str = "auto"
    connections: int = 32
    part: int = 16 << 20
    """Larger files travel in parts of this size, several at a time."""
    short_lived_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a listing says of an object."""

    size: int
    etag: str = ""


def add_store_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `put` and `get`."""
    parser.add_argument("--endpoint", default="", metavar="URL", help="of an S3-compatible store")
    parser.add_argument("--region", default="", metavar="NAME", help="of the bucket")
    parser.add_argument(
        "--addressing", default="auto", choices=ADDRESSING, help="of the bucket (%(default)s)"
    )
    parser.add_argument(
        "--connections", type=int, default=32, metavar="N", help="at a time (%(default)s)"
    )
    parser.add_argument(
        "--part-mib", type=int, default=16, metavar="N",
        help="size of the parts of large files (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--short-lived-only", action="store_true",
        help="refuse keys without a session token: this machine is not ours",
    )  # fmt: skip


def store_options(args: argparse.Namespace) -> StoreOptions:
    if args.connections < 1:
        raise UsageError(f"--connections {args.connections} is less than one")
    if args.part_mib < 5:
        raise UsageError(f"--part-mib {args.part_mib}: S3 takes no parts of less than 5 MiB")
    return StoreOptions(
        endpoint=args.endpoint, region=args.region, addressing=args.addressing,
        connections=args.connections, part=args.part_mib << 20,
        short_lived_only=args.short_lived_only,
    )  # fmt: skip


def open_store(url: str, options: StoreOptions) -> S3Store | FolderStore:
    """The store behind an address."""
    if url.startswith(S3):
        return S3Store(url, options)
    if url.startswith(f"{FILE}/"):
        return FolderStore(Path(url.removeprefix(FILE)))
    raise UsageError(f"{url} is no address of objects", "Write s3://BUCKET/FOLDER or file:///DIR.")


def is_hidden(name: str) -> bool:
    """Locks, files being written, our own manifest: nobody's results."""
    return any(part.startswith(".") for part in name.split("/"))


def stays_inside(name: str) -> bool:
    """Whether a name from elsewhere is one plain path below a folder."""
    path = PurePosixPath(name)
    plain = str(path) == name and name != "." and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock the folder, and remove what killed writers left below it."""
    with lock_folder(folder):
        for left in folder.rglob(f".*{ASIDE_SUFFIX}"):
            left.unlink(missing_ok=True)
        yield


class FolderStore:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = f"{FILE}{folder}".rstrip("/")

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return only_writer(self.folder)

    def listed(self) -> dict[str, Listed]:
        return {
            path.relative_to(self.folder).as_posix(): Listed(size=path.stat().st_size)
            for path in self.folder.rglob("*")
            if path.is_file()
        }

    def digest(self, name: str) -> str:
        return sha256_file(self.folder / name)

    def send(self, path: Path, name: str, size: int, digest: str) -> None:
        del size, digest  # read back by whoever asks
        with path.open("rb") as reading, write_aside(self.folder / name) as writing:
            shutil.copyfileobj(reading, writing, BLOCK)

    def fetch(self, name: str, size: int, handle: BinaryIO, *, proved: bool) -> None:
        del size, proved
        with (self.folder / name).open("rb") as reading:
            shutil.copyfileobj(reading, handle, BLOCK)

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        with write_aside(self.folder / name) as handle:
            handle.write(data)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def cancel(self) -> None:
        """Nothing goes on by itself here."""


class S3Store:
    """A prefix in a bucket. boto3's client may be used by many threads."""

    def __init__(self, url: str, options: StoreOptions) -> None:
        self.bucket, _, prefix = url.removeprefix(S3).partition("/")
        if not self.bucket:
            raise UsageError(f"{url} names no bucket", "Write s3://BUCKET/FOLDER.")
        self.where = url.rstrip("/")
        self._prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._options = options
        self._client = connect(options, self.where)

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def listed(self) -> dict[str, Listed]:
        """Every object below the prefix; a thousand arrive with one request."""
        found = {}
        with explained(self.where):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=self._prefix
            )
            for page in pages:
                for entry in page.get("Contents", ()):
                    name = entry["Key"].removeprefix(self._prefix)
                    if name and not name.endswith("/"):  # consoles make such, for folders
                        found[name] = Listed(size=entry["Size"], etag=entry["ETag"].strip('"'))
        return found

    def digest(self, name: str) -> str:
        """The SHA-256 that it was stored with; empty for what others stored."""
        with explained(f"{self.where}/{name}"):
            answer = self._client.head_object(Bucket=self.bucket, Key=self._prefix + name)
        return str(answer.get("Metadata", {}).get("sha256", ""))

    def send(self, path: Path, name: str, size: int, digest: str) -> None:
        key, about = self._prefix + name, {"sha256": digest}
        with explained(f"{self.where}/{name}"):
            if size <= self._options.part:
                with path.open("rb") as handle:
                    self._client.put_object(
                        Bucket=self.bucket, Key=key, Body=handle, Metadata=about,
                        ChecksumSHA256=base64.b64encode(bytes.fromhex(digest)).decode(),
                    )  # fmt: skip
                return
            self._drop_parts(key)
            self._transfers.upload(str(path), self.bucket, key, {"Metadata": about}).result()

    def fetch(self, name: str, size: int, handle: BinaryIO, *, proved: bool) -> None:
        """`proved`: the caller knows the digest, so the store's own checksum need not be tried."""
        key = self._prefix + name
        extra = {} if proved else {"ChecksumMode": "ENABLED"}
        with explained(f"{self.where}/{name}"):
            if size > self._options.part:
                self._transfers.download(self.bucket, key, handle, extra).result()
                return
            for attempt in range(TRIES):
                handle.seek(0)
                handle.truncate()
                try:
                    body = self._client.get_object(Bucket=self.bucket, Key=key, **extra)["Body"]
                    with contextlib.closing(body):
                        shutil.copyfileobj(body, handle, BLOCK)
                except _broken_off():
                    if attempt == TRIES - 1:
                        raise
                    time.sleep(0.2 * 2**attempt)
                else:
                    return

    def read(self, name: str) -> bytes | None:
        key = self._prefix + name
        with explained(f"{self.where}/{name}"):
            try:
                return self._client.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            except self._client.exceptions.NoSuchKey:
                return None

    def write(self, name: str, data: bytes) -> None:
        with explained(f"{self.where}/{name}"):
            self._client.put_object(Bucket=self.bucket, Key=self._prefix + name, Body=data)

    def remove(self, name: str) -> None:
        with explained(f"{self.where}/{name}"):
            self._client.delete_object(Bucket=self.bucket, Key=self._prefix + name)

    def cancel(self) -> None:
        """Give up large files on their way; their parts are removed from the store."""
        if "_transfers" in self.__dict__:
            # Its `shutdown(cancel=True)` mixes up its arguments (s3transfer 0.19).
            self._transfers.__exit__(KeyboardInterrupt, KeyboardInterrupt("given up"), None)

    @cached_property
    def _transfers(self) -> Any:
        from boto3.s3.transfer import TransferConfig, create_transfer_manager

        size = self._options.part
        config = TransferConfig(
            multipart_threshold=size, multipart_chunksize=size,
            max_concurrency=self._options.connections, num_download_attempts=TRIES + 1,
            preferred_transfer_client="classic",
        )  # fmt: skip
        return create_transfer_manager(self._client, config)

    def _drop_parts(self, key: str) -> None:
        """What a killed upload of the same file left; stores charge for it and list it nowhere."""
        answer = self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=key)
        for upload in answer.get("Uploads", ()):
            if upload["Key"] == key:
                self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=key, UploadId=upload["UploadId"]
                )


def connect(options: StoreOptions, where: str) -> Any:
    """A client whose requests are repeated a few times, and do not wait for ever."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError:
        raise DflashError("boto3 is not installed here", "Install it to use s3://.") from None
    style: Any = {"addressing_style": options.addressing}
    config = Config(
        s3=style, connect_timeout=10, read_timeout=60,
        retries={"mode": "standard", "total_max_attempts": TRIES + 1},
        max_pool_connections=2 * options.connections,  # small files, and parts of large ones
        response_checksum_validation="when_required",
    )  # fmt: skip
    with explained(where):
        session = boto3.Session()
        found = session.get_credentials()
        if options.short_lived_only and found is not None and not found.token:
            raise DflashError(
                f"{where}: the keys here have no session token, so they are long-lived",
                "Give short-lived ones with AWS_SESSION_TOKEN; or, where that risk is taken, "
                "set `long_lived_keys: true` on the step.",
            )
        return session.client(
            "s3", endpoint_url=options.endpoint or None, region_name=options.region or None,
            config=config,
        )  # fmt: skip


def _broken_off() -> tuple[type[Exception], ...]:
    from botocore import exceptions as boto

    return (boto.HTTPClientError, boto.IncompleteReadError, boto.FlexibleChecksumError)


@contextlib.contextmanager
def explained(where: str) -> Iterator[None]:
    """The store's refusals as ours; a fault of the disk stays one."""
    from botocore import exceptions as boto
    from s3transfer.exceptions import CancelledError, RetriesExceededError

    try:
        yield
    except (boto.NoCredentialsError, boto.PartialCredentialsError) as error:
        raise DflashError(
            f"{where}: no credentials were found for it",
            "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: in a runbook, the task's `secrets:`.",
        ) from error
    except boto.ClientError as error:
        raise _refused(where, error) from error
    except (
        boto.HTTPClientError,
        boto.ConnectionError,
        CancelledError,
        RetriesExceededError,
    ) as error:
        raise DflashError(f"{where} gives no answer: {_short(error)}", AGAIN) from error
    except (boto.BotoCoreError, ValueError) as error:
        raise DflashError(
            f"{where}: {_short(error)}", "Correct the address, the region or the endpoint."
        ) from error


def _refused(where: str, error: Any) -> DflashError:
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    code = error.response.get("Error", {}).get("Code", "")
    if status in (401, 403):
        return DflashError(
            f"{where}: the store refuses us ({code})",
            "Check the credentials and what they may do: list, get and put below this prefix.",
        )
    if code == "NoSuchBucket":
        return DflashError(
            f"{where}: there is no such bucket", "Make it, or name another; see --endpoint."
        )
    if status == 404:
        return DflashError(f"{where} is not there", "Upload it again with `dflash put`.")
    if status >= 500 or status == 429:
        return DflashError(f"{where}: the store has trouble ({status} {code})", AGAIN)
    return DflashError(f"{where}: {_short(error)}", AGAIN)


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
