"""An allocation that failed, told as what the user can do about it: whose, how much, which flag."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from dflash.errors import DflashError

if TYPE_CHECKING:
    from dflash.ranks import Role
    from dflash.train_config import TrainConfig

SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
GIB = 2**30


class OutOfMemory(DflashError):
    """A device, or the host, has too little memory for this role."""


def is_out_of_memory(error: BaseException | None) -> bool:
    if isinstance(error, MemoryError):
        return True
    said = str(error).lower()
    return isinstance(error, RuntimeError) and any(sign in said for sign in SIGNS)


def out_of_memory(error: BaseException, role: Role, config: TrainConfig) -> OutOfMemory:
    """The same failure in the words of a training run."""
    said = str(error)
    wanted, free = _amount(said, r"ried to allocate ([\d.]+) ?(\w+)"), _free(said)
    lack = ""
    if wanted is not None and free is not None and wanted > free:
        lack = f": {(wanted - free) / GIB:,.1f} GiB missing for a tensor of {wanted / GIB:,.1f} GiB"
    elif wanted is not None:
        lack = f" for a tensor of {wanted / GIB:,.1f} GiB"
    where = "GPU" if "CUDA" in said or "GPU" in said else "host"
    return OutOfMemory(f"The {where} of {role.label} is out of memory{lack}.", _helps(role, config))


def _helps(role: Role, config: TrainConfig) -> str:
    """Flags that lower what this role holds, the cheapest first."""
    batch = f"--batch-tokens (now {config.batch_tokens})"
    blocks = f"--batch-blocks (now {config.batch_blocks})"
    if config.batch_docs is not None:
        batch, blocks = f"--batch-docs (now {config.batch_docs})", "--anchors-per-doc"
    if not role.is_drafter:
        return (
            f"Lower {batch}, --max-length or --ring (now {config.ring}); see `dflash plan memory`."
        )
    flags = [f"lower {blocks}, {batch} or --head-chunk-rows (now {config.head_chunk_rows})"]
    if config.drafters > 1 and not config.shard_optimizer:
        flags.append("add --shard-optimizer")
    if role.colocated:
        flags.append("give target and drafter a GPU each (--targets 1 --drafters 1)")
    text = "; or ".join(flags)
    return f"{text[0].upper()}{text[1:]}; see `dflash plan memory`."


def _free(said: str) -> float | None:
    """Of the device, or of what the process may take of it."""
    free = _amount(said, r"of which ([\d.]+) (\w+) is free")
    allowed = _amount(said, r"([\d.]+) (\w+) allowed;")
    if free is None or allowed is None:
        return free
    own = (r"([\d.]+) (\w+) is allocated by", r"([\d.]+) (\w+) is reserved by")
    return min(free, allowed - sum(_amount(said, pattern) or 0.0 for pattern in own))


def _amount(said: str, pattern: str) -> float | None:
    found = re.search(pattern, said)
    if found is None or found[2] not in UNITS:
        return None
    return float(found[1]) * UNITS[found[2]]
