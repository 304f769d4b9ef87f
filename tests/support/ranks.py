"""Several ranks of one job in processes that start in milliseconds: torch is imported once."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PRELOAD = ["torch", "transformers.models.llama.modeling_llama", "dflash.drafter_run",
           "dflash.sharded", "dflash.target", "dflash.checkpoint", "dflash.train"]  # fmt: skip
DEADLINE_S = 100


def context() -> Any:
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOAD)
    return made


def in_ranks(count: int, folder: Path, work: Callable[..., Any], *args: Any) -> list[Any]:
    """What `work(rank, *args)` returns in each of `count` joined processes, by rank."""
    made = context()
    results = folder / f"results-{work.__name__}"
    results.mkdir(parents=True, exist_ok=True)
    meeting = f"file://{results}/meeting"
    started = [
        # As bytes: tensors would otherwise arrive as shared memory, the same for all.
        made.Process(target=_rank, args=(rank, count, meeting, results, work, pickle.dumps(args)))
        for rank in range(count)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(DEADLINE_S)
        if process.is_alive():
            process.kill()
            process.join()
    codes = [process.exitcode for process in started]
    (results / "meeting").unlink(missing_ok=True)
    assert codes == [0] * count, f"ranks ended with {codes}"
    return [pickle.loads((results / str(rank)).read_bytes()) for rank in range(count)]


def _rank(
    rank: int,
    count: int,
    meeting: str,
    results: Path,
    work: Callable[..., Any],
    args: bytes,
) -> None:
    import torch

    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
        "DFLASH_RENDEZVOUS": meeting, "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    try:
        found = work(rank, *pickle.loads(args))
    except BaseException as error:
        sys.stderr.write(f"rank {rank}: {type(error).__name__}: {error}\n")
        raise
    (results / str(rank)).write_bytes(pickle.dumps(found))


def train_in_ranks(options: dict[str, Any], folder: Path) -> list[int]:
    """A whole run of separate processes, as torchrun would start them; exit codes by rank."""
    from dflash.ranks import Role
    from dflash.train_config import TrainConfig

    config = TrainConfig.from_json(options)
    return in_ranks(Role.of(config, 0).world, folder, _train, options)


def _train(_rank_number: int, options: dict[str, Any]) -> int:
    from dflash.train import rank_main
    from dflash.train_config import TrainConfig

    return rank_main(TrainConfig.from_json(options))
