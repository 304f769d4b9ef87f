"""The flags of each SGLang release that we know, so that a wrong one is refused before a start.

Flags are removed between releases, not kept as aliases, and SGLang takes any unambiguous beginning
of a flag for the flag: a typo starts a server that does something else. So only whole names count.
The lists in `flags/` were printed by the parsers themselves; a test holds the newest against it.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

SHORTEST = 6  # of a beginning that says which flag is meant
LATEST = "0.5.23"
VERSIONS = ("0.5.17", LATEST)

RENAMED: dict[str, tuple[str, ...]] = {
    "--mamba-scheduler-strategy": ("--mamba-radix-cache-strategy",),
    "--cuda-graph-max-bs": ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs-prefill"),
    "--cuda-graph-bs": ("--cuda-graph-bs-decode", "--cuda-graph-bs-prefill"),
    "--disable-piecewise-cuda-graph": ("--disable-prefill-cuda-graph",),
    "--enable-piecewise-cuda-graph": ("--cuda-graph-backend-prefill",),
    "--piecewise-cuda-graph-max-tokens": ("--cuda-graph-max-bs-prefill",),
    "--enable-dp-attention": ("--attn-dp-size",),
    "--speculative-dflash-draft-window-size": ("--speculative-draft-window-size",),
    "--grpc-mode": ("--smg-grpc-mode",),
    "--enable-gdn-replayssm-spec": ("--enable-linear-replayssm-spec",),
    # What vLLM and older SGLang call it.
    "--tensor-parallel": ("--tensor-parallel-size",),
    "--max-model-len": ("--context-length",),
    "--gpu-memory-utilization": ("--mem-fraction-static",),
    "--max-num-seqs": ("--max-running-requests",),
}
"""Old or foreign name -> what it is called now."""

OURS = {
    "--model-path": "model", "--model": "model", "--host": "host", "--port": "port",
    "--served-model-name": "served_name", "--nccl-port": "nccl_port", "--device": "device",
    "--weight-version": None, "--dist-init-addr": "nccl_port", "--nccl-init-addr": "nccl_port",
}  # fmt: skip
"""Flags that the step sets, and the argument that sets them; None: nobody else may."""


@cache
def flags_of(version: str) -> frozenset[str]:
    """Every flag of a release; nothing when we do not know it."""
    if version not in VERSIONS:
        return frozenset()
    file = resources.files("runbook.serving") / "flags" / f"sglang-{version}.txt"
    return frozenset(file.read_text(encoding="ascii").split())


def near(flag: str, version: str = LATEST) -> list[str]:
    """What a release calls it: the new name of an old one, one that begins so, or looks alike."""
    known = flags_of(version)
    renamed = [name for name in RENAMED.get(flag, ()) if name in known]
    if flag.startswith("--nsa-"):
        renamed += [name for name in (flag.replace("--nsa-", "--dsa-", 1),) if name in known]
    # SGLang takes a beginning for the whole, so that is what is written.
    longer = sorted(name for name in known if name.startswith(flag) and len(flag) > SHORTEST)
    return renamed or longer[:3] or get_close_matches(flag, sorted(known), n=3, cutoff=0.75)


def problem_of(words: Iterable[str], version: str) -> str | None:
    """What is wrong with the first wrong flag among these words; None when all are right."""
    known = flags_of(version)
    for word in words:
        flag = word.partition("=")[0]
        if not flag.startswith("--"):
            continue
        if flag in OURS:
            ours = OURS[flag]
            return f"`{flag}` is set by the step" + (f": use `{ours}`" if ours else "")
        if known and flag not in known:
            names = near(flag, version)
            there = f"; there it is {_either(names)}" if names else ""
            return f"`{flag}` is no flag of SGLang {version}{there}"
    return None


def _either(names: list[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)
