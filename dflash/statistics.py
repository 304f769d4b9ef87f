"""Acceptance lengths, per-slot acceptance and the paired bootstrap. Torch-free and pure.

Acceptance length of a round = accepted drafts + the one token the target adds, as far as it was
produced: what a token limit or an end token cut off is not counted. *Macro* is the mean over
prompts of each prompt's mean over rounds; *micro* is all produced tokens over all rounds. Engines
print micro, papers macro, and the two differ, so both are always given.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One verify forward: drafts handed in, the leading run that held, tokens produced."""

    proposed: int
    accepted: int
    produced: int

    def __post_init__(self) -> None:
        assert 0 <= self.accepted <= self.proposed
        assert 1 <= self.produced <= self.accepted + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Acceptance of one slot, given that every earlier slot of its block was accepted."""

    slot: int
    tried: int
    accepted: int
    rate: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean of paired differences with its percentile bootstrap interval."""

    mean: float
    low: float
    high: float
    level: float
    resamples: int
    seed: int
    pairs: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def acceptance_length(rounds: Sequence[Round]) -> float | None:
    """Mean tokens per verify round of one prompt; None when the first token ended it."""
    if not rounds:
        return None
    return sum(r.produced for r in rounds) / len(rounds)


def macro(prompts: Iterable[Sequence[Round]]) -> float | None:
    """Mean over prompts of the mean over rounds; prompts without a round do not vote."""
    lengths = [x for rounds in prompts if (x := acceptance_length(rounds)) is not None]
    return math.fsum(lengths) / len(lengths) if lengths else None


def micro(prompts: Iterable[Sequence[Round]]) -> float | None:
    """All produced tokens over all rounds."""
    return acceptance_length([r for rounds in prompts for r in rounds])


def slots(prompts: Iterable[Sequence[Round]]) -> list[Slot]:
    """Per-slot conditional acceptance; slot 1 is the first drafted token after the anchor."""
    tried: dict[int, int] = {}
    held: dict[int, int] = {}
    for rounds in prompts:
        for r in rounds:
            # What lies past the end token was never asked of anybody: neither tried nor held.
            for slot in range(1, min(r.accepted + 1, r.proposed, r.produced) + 1):
                tried[slot] = tried.get(slot, 0) + 1
                if slot <= r.accepted:
                    held[slot] = held.get(slot, 0) + 1
    return [
        Slot(slot=s, tried=n, accepted=held.get(s, 0), rate=held.get(s, 0) / n)
        for s, n in sorted(tried.items())
    ]


def histogram(prompts: Iterable[Sequence[Round]]) -> dict[str, int]:
    """How many rounds produced how many tokens (keys as strings: it goes into JSON)."""
    counts: dict[int, int] = {}
    for rounds in prompts:
        for r in rounds:
            counts[r.produced] = counts.get(r.produced, 0) + 1
    return {str(k): counts[k] for k in sorted(counts)}


def paired_bootstrap(
    differences: Sequence[float], *, seed: int, resamples: int = 10_000, level: float = 0.95
) -> Interval:
    """Percentile interval of the mean difference, resampling prompts (the unit that is random).

    Rounds of one prompt depend on each other; resampling them would make the interval too narrow.
    """
    import numpy as np

    if not differences:
        raise ValueError("a bootstrap needs at least one pair")
    values = np.asarray(differences, dtype=np.float64)
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(values), size=(resamples, len(values)))
    means = values[picks].mean(axis=1)
    tail = (1.0 - level) / 2.0
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(
        mean=float(values.mean()),
        low=float(low),
        high=float(high),
        level=level,
        resamples=resamples,
        seed=seed,
        pairs=len(values),
    )


def paired_differences(
    left: Mapping[str, Sequence[Round]], right: Mapping[str, Sequence[Round]]
) -> list[float]:
    """Per-prompt acceptance length of left minus right, over prompts where both have rounds."""
    out: list[float] = []
    for prompt in sorted(left.keys() & right.keys()):
        a, b = acceptance_length(left[prompt]), acceptance_length(right[prompt])
        if a is not None and b is not None:
            out.append(a - b)
    return out
