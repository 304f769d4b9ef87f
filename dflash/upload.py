"""Checkpoints to S3 behind the training's back; the training never waits for it and never fails.

    URL/step-000120/{..., manifest.json}      URL/latest

`latest` names a checkpoint only when every file of it is there with its size. Credentials, region
and endpoint come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...).
"""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.checkpoint import PARTIAL
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.files import sha256_file, sync_folder, write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MANIFEST, LATEST = "manifest.json", "latest"
PAUSES_S = (1, 2, 5, 10, 30, 60)
PATIENCE_S = 600.0
"""At the end of a run, for an upload that is getting on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A prefix in a bucket."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, url: str) -> Place:
        bucket, _, prefix = url.removeprefix("s3://").partition("/")
        if not url.startswith("s3://") or not bucket:
            raise UsageError(f"--upload {url} is no s3://BUCKET/PREFIX")
        return cls(bucket=bucket, prefix=prefix.strip("/"))

    def key(self, *parts: str) -> str:
        return "/".join(part for part in (self.prefix, *parts) if part)


class Uploader:
    """A thread that uploads the newest checkpoint it was offered, again and again until it is."""

    def __init__(self, url: str, tell: Callable[[str], None]) -> None:
        self.url, self.place, self._tell = url, Place.of(url), tell
        self._client: Any = None
        self._wake = threading.Condition()
        self._wanted: Path | None = None
        self._current: Path | None = None
        self._ending = False
        self.latest, self.problem = "", ""
        self._thread = threading.Thread(target=self._work, name="upload", daemon=True)
        self._thread.start()

    @property
    def holding(self) -> set[str]:
        """Names of checkpoints that are being read, or will be."""
        with self._wake:
            return {path.name for path in (self._wanted, self._current) if path is not None}

    def offer(self, folder: Path) -> None:
        """A whole checkpoint; one that waits is given up for it."""
        with self._wake:
            self._wanted = folder
            self._wake.notify_all()

    def close(self) -> dict[str, Any]:
        """Let what is getting on get done, try once more what is not; then say how it stands."""
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.problem = self.problem or "the last upload was not done in time"
        return {"url": self.url, "latest": self.latest or None, "problem": self.problem or None}

    def _work(self) -> None:
        failures = 0
        while True:
            with self._wake:
                while not (self._wanted or self._current or self._ending):
                    self._wake.wait()
                self._current, self._wanted = self._wanted or self._current, None
                last_try = self._ending
            if self._current is None:
                return
            try:
                self._upload(self._current)
            except Exception as error:  # noqa: BLE001 (a library's bug must not end a training)
                failures += 1
                self.problem = f"{self._current.name}: {_short(error)}"
                self._tell(f"upload failed ({self.problem}); it is tried again")
                if last_try:
                    return
                self._pause(PAUSES_S[min(failures, len(PAUSES_S)) - 1])
                continue
            failures, self.problem, self.latest = 0, "", self._current.name
            self._tell(f"{self._current.name} is uploaded to {self.url}")
            with self._wake:
                self._current = None

    def _pause(self, seconds: float) -> None:
        with self._wake:
            if not self._ending:
                self._wake.wait(seconds)

    def _upload(self, folder: Path) -> None:
        if self._client is None:
            self._client = connect()
        files = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(folder.iterdir())
            if path.is_file()
        }
        bucket, key = self.place.bucket, self.place.key
        for name in files:
            self._client.upload_file(str(folder / name), bucket, key(folder.name, name))
        for name, entry in files.items():
            found = self._client.head_object(Bucket=bucket, Key=key(folder.name, name))
            if found["ContentLength"] != entry["size"]:
                raise DflashError(
                    f"{name} has {found['ContentLength']} bytes there, {entry['size']} here"
                )
        body = json.dumps({"files": files}, indent=1).encode()
        self._client.put_object(Bucket=bucket, Key=key(folder.name, MANIFEST), Body=body)
        self._client.put_object(Bucket=bucket, Key=key(LATEST), Body=f"{folder.name}\n".encode())


def connect() -> Any:
    """A client; each call gives up by itself, so that the next try starts fresh."""
    try:
        import boto3
        from botocore.config import Config
    except ImportError as error:
        raise DflashError("boto3 is not installed here") from error
    return boto3.client(
        "s3",
        config=Config(
            connect_timeout=10, read_timeout=60, retries={"mode": "standard", "max_attempts": 3}
        ),
    )


def fetch_latest(url: str, out: Path, tell: Callable[[str], None]) -> Path | None:
    """The checkpoint that `latest` names, into `out`, whole or not at all; None when none is there.

    For a rented machine that is gone: the same command on a new one goes on.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    place, client = Place.of(url), connect()
    try:
        try:
            answer = client.get_object(Bucket=place.bucket, Key=place.key(LATEST))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in ("NoSuchKey", "404"):
                return None
            raise
        name = answer["Body"].read().decode().strip()
        if not name.startswith("step-") or "/" in name:
            raise InputInvalid(f"{url}/latest names {name!r}, which is no checkpoint")
        tell(f"fetching {name} from {url}")
        body = client.get_object(Bucket=place.bucket, Key=place.key(name, MANIFEST))["Body"].read()
        aside = out / f"{PARTIAL}{name}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        for file, entry in json.loads(body)["files"].items():
            if "/" in file:
                raise InputInvalid(f"{url}/{name} lists a file {file!r}")
            client.download_file(place.bucket, place.key(name, file), str(aside / file))
            if sha256_file(aside / file) != entry["sha256"]:
                raise InputInvalid(
                    f"{file} of {url}/{name} is not what was uploaded",
                    "Point `latest` there at an earlier checkpoint, or leave --upload out.",
                )
    except (BotoCoreError, ClientError, OSError) as error:
        raise DflashError(
            f"Cannot look for an earlier checkpoint in {url}: {_short(error)}",
            "Correct the credentials or the endpoint (AWS_ENDPOINT_URL), or leave --upload out.",
        ) from error
    aside.rename(out / name)
    sync_folder(out)
    with contextlib.suppress(OSError):
        write_text(out / LATEST, name + "\n")
    return out / name


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:199] + "…"
