"""Parts of a tokenized set made by worker processes, one job a file; results as they come."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError
from dflash.parts import Refused, make_part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def results(
    jobs: Iterator[tuple[Any, ...]], workers: int, *, keep: bool
) -> Iterator[tuple[int, dict[str, Any] | Refused]]:
    """Results with the job's number, as they come; a job's file is removed behind it."""
    if workers <= 1:
        for number, job in enumerate(jobs):
            yield number, make_part(*job)
            _drop(job[0], keep=keep)
        return
    # spawn: a fork of a process in which torch or Arrow has started threads can hang
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn) as pool:
        running: dict[Future[dict[str, Any] | Refused], tuple[int, Path]] = {}
        try:
            for number, job in enumerate(jobs):
                running[pool.submit(make_part, *job)] = (number, job[0])
                if len(running) >= 2 * workers:
                    yield from _finished(running, keep=keep)
            while running:
                yield from _finished(running, keep=keep)
        except BrokenProcessPool:
            raise DflashError(
                "a worker process died, perhaps for want of memory",
                "Run the same command again, with fewer --workers; finished files are kept.",
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _finished(
    running: dict[Future[dict[str, Any] | Refused], tuple[int, Path]], *, keep: bool
) -> Iterator[tuple[int, dict[str, Any] | Refused]]:
    for future in wait(running, return_when=FIRST_COMPLETED).done:
        number, path = running.pop(future)
        yield number, future.result()
        _drop(path, keep=keep)


def _drop(path: Path, *, keep: bool) -> None:
    if not keep:
        path.unlink(missing_ok=True)
