"""The processes of an evaluation: each loads the target once and takes prompt after prompt.

Nothing here outlives the parent: workers end when it ends, be it killed, and an interruption does
not wait for a prompt in work.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Generator

    from dflash.bench import Bench, BenchSpec
    from dflash.heldout import TokenPrompt


def records_of(spec: BenchSpec, todo: list[TokenPrompt], workers: int) -> Generator[dict[str, Any]]:
    """A record per prompt, in the order in which they get done."""
    if not todo:
        return
    if workers == 1:
        from dflash.bench import Bench

        bench = Bench(spec)
        bench.warm_up(todo[0].tokens)
        for prompt in todo:
            yield bench.evaluate(prompt.id, prompt.tokens)
        return
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
        initargs=(spec, todo[0].tokens),
    )
    finished = False
    try:
        jobs = [pool.submit(_work, prompt.id, prompt.tokens) for prompt in todo]
        for job in concurrent.futures.as_completed(jobs):
            yield job.result()
        finished = True
    except BrokenProcessPool:
        raise DflashError(
            "a worker process of the evaluation died",
            "Often memory: each worker holds the target once. Run again with fewer --workers; "
            "finished prompts are kept.",
        ) from None
    finally:
        if not finished:  # an interruption waits for nobody's prompt
            for child in set(multiprocessing.active_children()) - others:
                child.terminate()
        pool.shutdown(cancel_futures=True)


_bench: Bench | DflashError | None = None


def _start_worker(spec: BenchSpec, warm_up: list[int]) -> None:
    """In the worker: load everything once; end with the parent, even when that is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; the parent ends its workers
    threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    _load(spec, warm_up)


def _end_with(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def _load(spec: BenchSpec, warm_up: list[int]) -> None:
    """A wrong input is kept for `_work` to raise: the pool itself would only say "broken"."""
    global _bench
    from dflash.bench import Bench

    try:
        _bench = Bench(spec)
        _bench.warm_up(warm_up)
    except DflashError as error:
        _bench = error


def _work(prompt_id: str, tokens: list[int]) -> dict[str, Any]:
    assert _bench is not None
    if isinstance(_bench, DflashError):
        raise _bench
    return _bench.evaluate(prompt_id, tokens)
