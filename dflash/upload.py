"""Checkpoints to S3 behind the training's back; the training never waits for it and never fails.

    URL/step-000120/{..., manifest.json}      URL/latest

`latest` names a checkpoint only when every file of it is there with its size. What is not said of
the store, and the credentials, come from the environment (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
...), or are handed to the job while it runs (`dflash.keys`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dflash import keys
from dflash.checkpoint import NAME, PARTIAL
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.files import json_object, sha256_file, sync_folder, write_text
from dflash.s3 import S3, KeysExpired, NoAccess, StoreOptions, short, split
from dflash.s3_store import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dflash.train_config import TrainConfig

MANIFEST, LATEST = "manifest.json", "latest"
FILES = {"files": {"*": {"size": int, "sha256": str}}}
OPTIONS = StoreOptions(connections=8)
"""The training has the processors and the line first."""
OTHER = "Point `latest` there at an earlier checkpoint, or leave --upload out."
PAUSES_S = (1, 2, 5, 10, 30, 60)
PATIENCE_S = 600.0
"""At the end of a run, for an upload that is getting on."""
LOOK_S = 0.2


def options_of(config: TrainConfig) -> StoreOptions:
    """How its store is reached."""
    return replace(
        OPTIONS, endpoint=config.endpoint, region=config.region, addressing=config.addressing,
        short_lived_only=config.short_lived_only,
    )  # fmt: skip


class Uploader:
    """A thread that uploads the newest checkpoint it was offered, again and again until it is."""

    def __init__(
        self, url: str, tell: Callable[[str], None], options: StoreOptions = OPTIONS
    ) -> None:
        if not url.startswith(S3):
            raise UsageError(f"--upload {url} is no s3://BUCKET/PREFIX")
        split(url)
        self.url, self._tell, self._options = url.rstrip("/"), tell, options
        self._store: S3Store | None = None
        self._wake = threading.Condition()
        self._wanted: Path | None = None
        self._current: Path | None = None
        self._ending = False
        self.latest, self.problem = "", ""
        self.keys_ended = False
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

    def close(self, left: Callable[[], float | None] = lambda: None) -> dict[str, Any]:
        """Let what is getting on get done, try once more what is not; then say how it stands.

        `left`: the seconds that there are for it, if somebody limits them, which may be later.
        """
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        until = time.monotonic() + PATIENCE_S
        while self._thread.is_alive() and time.monotonic() < until and left() != 0:
            self._thread.join(min(LOOK_S, until - time.monotonic()))
        if self._thread.is_alive():
            late = "the upload was not done in time; the same command goes on with it"
            self.problem = self.problem or late
        found = {"url": self.url, "latest": self.latest or None, "problem": self.problem or None}
        return {**found, **({"keys_ended": True} if self.keys_ended else {})}

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
            before = keys.newest()
            try:
                self._upload(self._current)
            except Exception as error:  # noqa: BLE001 (a library's bug must not end a training)
                failures += 1
                self.problem = f"{self._current.name}: {short(error)}"
                self.keys_ended = isinstance(error, KeysExpired)
                self._tell(f"upload failed ({self.problem}); it is tried again")
                if last_try:
                    return
                self._pause(PAUSES_S[min(failures, len(PAUSES_S)) - 1], before)
                continue
            failures, self.problem, self.latest = 0, "", self._current.name
            self.keys_ended = False
            self._tell(f"{self._current.name} is uploaded to {self.url}")
            with self._wake:
                self._current = None

    def _pause(self, seconds: float, before: keys.Keys | None) -> None:
        """New keys end it."""
        with self._wake:
            keys.wait_for_others(
                before, within_s=seconds, wait=self._wake.wait, stop=lambda: self._ending
            )

    def _upload(self, folder: Path) -> None:
        if self._store is None:
            self._store = S3Store(self.url, self._options)
        store, top = self._store, folder.name
        files: dict[str, dict[str, Any]] = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(folder.iterdir())
            if path.is_file()
        }
        there = store.listed(below=f"{top}/")
        for name, entry in files.items():
            key, size, digest = f"{top}/{name}", entry["size"], entry["sha256"]
            known = there.get(key)  # by a run that was killed
            if known is None or known.size != size or store.digest(key) != digest:
                store.send(folder / name, key, size, digest, None)
        there = store.listed(below=f"{top}/")
        for name, entry in files.items():
            found = there.get(f"{top}/{name}")
            if found is None or found.size != entry["size"]:
                size = "no" if found is None else found.size
                raise DflashError(f"{name} has {size} bytes there, {entry['size']} here")
        store.write(f"{top}/{MANIFEST}", json.dumps({"files": files}, indent=1).encode())
        store.write(LATEST, f"{top}\n".encode())


def fetch_latest(
    url: str, out: Path, tell: Callable[[str], None], options: StoreOptions = OPTIONS
) -> Path | None:
    """The checkpoint that `latest` names, into `out`, whole or not at all; None when none is there.

    For a rented machine that is gone: the same command on a new one goes on.
    """
    try:
        store = S3Store(url, options)
        latest = store.read(LATEST)
        if latest is None:
            return None
        name = latest.decode(errors="replace").strip()
        if not NAME.fullmatch(name):
            raise InputInvalid(f"{url}/{LATEST} names {name!r}, which is no checkpoint", OTHER)
        tell(f"fetching {name} from {url}")
        aside = _fetch(store, name, out)
    except (InputInvalid, NoAccess):
        raise
    except (DflashError, OSError) as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # of this disk; what has arrived is kept
        raise DflashError(
            f"Cannot look for an earlier checkpoint in {url}: {short(error)}",
            "Correct the credentials or the endpoint (AWS_ENDPOINT_URL), or leave --upload out.",
        ) from error
    aside.rename(out / name)
    sync_folder(out)
    with contextlib.suppress(OSError):
        write_text(out / LATEST, name + "\n")
    return out / name


def _fetch(store: S3Store, name: str, out: Path) -> Path:
    """All files of a checkpoint, aside; those of an earlier try are kept when they are right."""
    body = store.read(f"{name}/{MANIFEST}")
    if body is None:
        raise InputInvalid(f"{store.where}/{name} has no {MANIFEST}", OTHER)
    files = json_object(body, f"{store.where}/{name}/{MANIFEST}", MANIFEST, FILES, hint=OTHER)[
        "files"
    ]
    aside = out / f"{PARTIAL}{name}"
    aside.mkdir(parents=True, exist_ok=True)
    for file, entry in files.items():
        if "/" in file or file in ("", ".", ".."):
            raise InputInvalid(f"{store.where}/{name} lists a file {file!r}", OTHER)
        path, digest = aside / file, entry["sha256"]
        if not path.is_file() or sha256_file(path) != digest:
            store.fetch(f"{name}/{file}", entry["size"], path, digest)
    for path in aside.iterdir():
        if path.name not in files:
            path.unlink()
    sync_folder(aside)
    return aside
