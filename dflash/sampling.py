"""How answers are sampled, as options of a command line; what could never be meant is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.errors import UsageError

if TYPE_CHECKING:
    import argparse

NUMBERS = {
    "max_tokens": (1, None), "temperature": (0, None), "top_p": (0, 1), "top_k": (1, None),
    "min_p": (0, 1), "presence_penalty": (-2, 2),
}  # fmt: skip
"""Option -> what it lies between; None: no bound, but a number all the same."""


def refuse_impossible(args: argparse.Namespace, *, positive: tuple[str, ...] = ()) -> None:
    """Before any server is asked: it would refuse every prompt.

    Args:
        positive: more options, which must be above 0.
    """
    for name, (low, high) in NUMBERS.items():
        value = getattr(args, name, None)
        if value is not None and not low <= value <= (float("1e9") if high is None else high):
            bound = f"at least {low}" if high is None else f"from {low} to {high}"
            raise _wrong(name, value, bound)
    for name in positive:
        if not 0 < getattr(args, name) <= 1e9:
            raise _wrong(name, getattr(args, name), "above 0")


def _wrong(name: str, value: float, bound: str) -> UsageError:
    return UsageError(f"--{name.replace('_', '-')} is {value:g}", f"It is a number {bound}.")
