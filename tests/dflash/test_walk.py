"""Walking the greedy text counts exactly the rounds that real decoding takes."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from dflash.decode import Greedy, Proposal, TargetSession, decode, prefill
from dflash.walk import walk
from tests.support.tiny_targets import VOCAB, save_tiny_target

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from dflash.decode import Sampler

PROMPT = [5, 9, 14, 3]
BLOCK = 4


@dataclass
class PartlyRight:
    """Drafts the target's own text, wrong from a slot on that depends on the anchor alone."""

    text: list[int]
    right: list[int]  # by the anchor's place in the text
    taps: tuple[int, ...] = ()

    def start(self) -> None:
        pass

    def observe(self, states: torch.Tensor | None) -> None:
        pass

    def propose(self, tokens: Sequence[int], *, limit: int, sampler: Sampler) -> Proposal:
        anchor = len(tokens) - 1 - len(PROMPT)
        drafts = list(itertools.islice(self.text, anchor + 1, anchor + BLOCK))
        drafts += [0] * (BLOCK - 1 - len(drafts))
        right = self.right[anchor]
        drafts[right:] = [(token + 1) % VOCAB for token in drafts[right:]]
        return Proposal(tokens=drafts[:limit])


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> TargetSession:
    from dflash.target import load_target

    folder = tmp_path_factory.mktemp("walk") / "target"
    save_tiny_target(folder, "llama", scale=2.0)
    return TargetSession(load_target(folder))


@pytest.mark.parametrize("seed", range(12))
def test_the_same_rounds_as_decoding(session: TargetSession, seed: int) -> None:
    draw = random.Random(seed)
    limit = draw.randrange(1, 40)
    start = prefill(session, PROMPT)

    def run(proposer: PartlyRight | None, stop_ids: frozenset[int]) -> tuple[list[int], list]:
        found = decode(
            session, start, proposer=proposer, sampler=Greedy(), limit=limit, stop_ids=stop_ids
        )
        return found.tokens, found.rounds

    plain, _ = run(None, frozenset())
    stop = frozenset({draw.choice(plain)} if seed % 2 else ())
    text, _ = run(None, stop)
    right = [draw.randrange(BLOCK) for _ in range(limit + 1)]
    spoken, rounds = run(PartlyRight(plain, right), stop)
    assert spoken == text
    runs = [min(right[i], len(text) - 1 - i) for i in range(len(text) - 1)]
    walked = walk(runs, block_size=BLOCK, limit=limit)
    assert [(r.proposed, r.produced) for r in walked] == [(r.proposed, r.produced) for r in rounds]
    # Behind an end token decoding still compares drafts; no statistic looks there.
    assert [r.accepted for r in walked] == [min(r.accepted, r.produced) for r in rounds]
