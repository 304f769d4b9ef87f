"""What `put` and `get` share: many files at a time, how far they are, and the manifest."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any, TypeVar

from dflash.objects import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from dflash.objects import FolderStore
    from dflash.progress import Progress
    from dflash.s3_store import S3Store

TELL_S = 1.0
T = TypeVar("T")


class Tally:
    """Bytes and files so far; tells at most once a second."""

    def __init__(self, progress: Progress, *, files: int, total: int) -> None:
        self.files, self.total = files, total
        self.done = self.moved = self.moved_files = 0
        self._finished = 0
        self._progress = progress
        self._lock = threading.Lock()
        self._began = self._told = time.monotonic()

    def add(self, size: int, *, moved: bool) -> None:
        with self._lock:
            self._finished += 1
            self.done += size
            if moved:
                self.moved += size
                self.moved_files += 1
            now = time.monotonic()
            if now - self._told < TELL_S and self._finished < self.files:
                return
            self._told = now
            rate = self.moved / 1e6 / max(now - self._began, 1e-9)
            self._progress.emit(
                "step", done=self.done, total=self.total, unit="bytes",
                metrics={"files": f"{self._finished}/{self.files}", "MB/s": rate},
            )  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """For out.json, and for whoever called."""
        return {
            "files": self.files, "bytes": self.total,
            "moved_files": self.moved_files, "moved_bytes": self.moved,
        }  # fmt: skip


def for_each(
    work: Callable[[T], None], todo: Iterable[T], threads: int, store: FolderStore | S3Store
) -> None:
    """Each in one of the threads; the first failure stops those that have not begun."""
    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, one) for one in todo]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            store.cancel()
            raise


def manifest(files: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Written last: it says what a whole folder is."""
    return {"format": FORMAT, "files": sorted(files, key=lambda entry: entry["path"])}


def encoded(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=1) + "\n").encode()
