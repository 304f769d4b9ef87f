"""Sealed shards to a store behind the run's back; the run never waits for it and never fails by it.

    URL/shard-00000.jsonl ...   as they are sealed      URL/manifest.json    last

Shards stay in the folder in any case, so that waiting for a store, or for keys when those that this
job has have ended, costs no room.

One thread sends them in order, with their SHA-256, and tries again after any trouble, less often
each time. At the end everything is compared with what the store has, and the manifests are written
there: until then nobody takes the folder for whole. What a killed run did not send, the next sends.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from dflash import keys
from dflash.completions import MANIFEST
from dflash.errors import DflashError
from dflash.objects import open_store
from dflash.put import local_file, send
from dflash.s3 import KeysExpired

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dflash.objects import FolderStore
    from dflash.progress import Progress
    from dflash.s3 import StoreOptions
    from dflash.s3_store import S3Store

PAUSES_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
LAST_TRIES = 3
KEYS_PATIENCE_S = 5.0
"""At the end, for new keys: whoever hands them out looks every few seconds, or is away for long."""


class Outbox:
    """Takes entries of the completions' manifest; `close` says what did not arrive."""

    def __init__(
        self,
        folder: Path,
        url: str,
        options: StoreOptions,
        *,
        tell: Callable[[str], None],
        pauses: tuple[float, ...] | None = None,
    ) -> None:
        # A wrong address or missing library is told before the first request to a server.
        self._store: FolderStore | S3Store = open_store(url, options)
        self.url = self._store.where
        self.sent = 0
        self.problem = ""
        self.keys_ended = False
        self._folder = folder
        self._options = options
        self._tell = tell
        self._pauses = pauses or PAUSES_S
        self._there: dict[str, int] | None = None
        self._waiting: deque[dict[str, Any]] = deque()
        self._wake = threading.Condition()
        self._ending = False
        self._thread = threading.Thread(target=self._work, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, entry: dict[str, Any]) -> None:
        """A sealed shard; safe to offer again."""
        with self._wake:
            self._waiting.append(entry)
            self._wake.notify_all()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def keys_told(self) -> str:
        """Until when the keys of this job hold, or that they are dead; empty without any."""
        return keys.told(refused=self.keys_ended)

    def stop(self) -> None:
        """At once: the next run sends what is left."""
        with self._wake:
            self._ending = True
            self._wake.notify_all()

    def close(self, manifest: dict[str, Any], progress: Progress) -> list[str]:
        """Send what is left, compare, write the manifests; the names that did not arrive."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join()
        names = [*(entry["file"] for entry in manifest["shards"]), MANIFEST]
        files = [local_file(self._folder / name, name) for name in names]
        for attempt in range(LAST_TRIES):
            before = keys.newest()
            try:
                send(files, self._store, self._options, progress=progress)
            except KeysExpired as error:
                self._note(error)
                self._tell(f"upload: {error}")
                if before is None or not keys.wait_for_others(
                    before, within_s=KEYS_PATIENCE_S, wait=time.sleep
                ):
                    break
            except (DflashError, OSError) as error:
                self._note(error)
                if attempt < LAST_TRIES - 1:
                    self._tell(f"upload: {error}; it is tried again")
                    time.sleep(self._pauses[min(attempt, len(self._pauses) - 1)])
            else:
                self._note(None)
                self._waiting.clear()
                return []
        return self._missing(names)

    def _missing(self, names: list[str]) -> list[str]:
        try:
            there = self._store.listed()
        except (DflashError, OSError):
            unsure = {entry["file"] for entry in self._waiting}
            return [name for name in names if name in unsure or name == MANIFEST]
        return [
            name
            for name in names
            if name == MANIFEST
            or name not in there
            or there[name].size != (self._folder / name).stat().st_size
        ]

    def _work(self) -> None:
        try:
            self._look()
        except Exception as error:  # noqa: BLE001 (as below)
            # Before hours of work: a missing key is known at once, the run goes on all the same.
            self._tell(f"upload to {self.url} does not work yet: {_short(error)}")
        failures = 0
        while True:
            with self._wake:
                while not self._waiting and not self._ending:
                    self._wake.wait()
                if self._ending:
                    return
                entry = self._waiting[0]
            before = keys.newest()
            try:
                self._send(entry)
            except Exception as error:  # noqa: BLE001 (a library's bug must not end the run)
                failures += 1
                ended = self.keys_ended
                self._note(error)
                if self.keys_ended and not ended:
                    self._tell(
                        f"the keys for {self.url} have run out: {self.waiting} shards wait here "
                        "and go when `runbook run` or `runbook watch` brings new ones"
                    )
                elif failures in (1, len(self._pauses)) or not failures % 60:
                    self._tell(f"upload of {entry['file']}: {self.problem}; it is tried again")
                self._pause(failures - 1, before)
                continue
            if failures:
                self._tell(f"upload goes on: {entry['file']} arrived")
            failures = 0
            self._note(None)
            with self._wake:
                self._waiting.popleft()
                self.sent += 1

    def _send(self, entry: dict[str, Any]) -> None:
        name, size, digest = entry["file"], entry["bytes"], entry["sha256"]
        there = self._look()
        if there.get(name) == size and self._store.digest(name) == digest:
            return
        self._store.send(self._folder / name, name, size, digest, None)

    def _look(self) -> dict[str, int]:
        """What earlier runs sent; asked for once."""
        if self._there is None:
            self._there = {found: about.size for found, about in self._store.listed().items()}
        return self._there

    def _note(self, error: Exception | None) -> None:
        self.problem = "" if error is None else _short(error)
        self.keys_ended = isinstance(error, KeysExpired)

    def _pause(self, failures: int, before: keys.Keys | None) -> None:
        """New keys end it."""
        seconds = self._pauses[min(failures, len(self._pauses) - 1)]
        with self._wake:
            keys.wait_for_others(
                before, within_s=seconds, wait=self._wake.wait, stop=lambda: self._ending
            )


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
