"""What can propose tokens to the decoding loop: a DFlash drafter, or prompt lookup."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dflash.decode import Proposal
from dflash.drafter import ContextCache, Drafter
from dflash.lookup import NgramIndex

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from dflash.config import DrafterConfig
    from dflash.decode import Sampler
    from dflash.target import TargetTaps


class DrafterProposer:
    """One block per round: the last token as anchor in slot 0, masks behind it.

    The context holds exactly the tokens before the anchor: `observe` brings their states, `propose`
    asserts that none is missing and none too many (an off-by-one here costs half the acceptance
    and raises nothing).
    """

    def __init__(self, drafter: Drafter, target: TargetTaps) -> None:
        self.config = drafter.config
        self.taps = drafter.config.target_layer_ids
        self._drafter, self._target = drafter, target
        self.start()

    def start(self) -> None:
        self._cache = ContextCache(self.config)
        self._new: list[Tensor] = []
        self._seen = 0

    def observe(self, states: Tensor | None) -> None:
        assert states is not None, "a drafter needs the target's taps"
        self._new.append(states)  # [n, K*H]
        self._seen += len(states)

    def propose(self, tokens: Sequence[int], *, limit: int, sampler: Sampler) -> Proposal:
        anchor = len(tokens) - 1
        assert self._seen == anchor, f"context of {self._seen} tokens, the anchor is at {anchor}"
        out = self._drafter.draft(
            self._block(tokens[-1]),
            self._context(),
            torch.arange(len(self._cache), anchor, device=self._target.device),
            torch.arange(anchor, anchor + self.config.block_size, device=self._target.device),
            cache=self._cache,
        )  # [1, B, H]
        kept = out[0, 1 : limit + 1]  # slot 0 is the anchor itself; slot k predicts token anchor+k
        return sampler.pick(head_logits(self.config, self._target, kept))

    def _block(self, anchor: int) -> Tensor:
        ids = torch.full((1, self.config.block_size), self.config.mask_token_id)
        ids[0, 0] = anchor
        ids = ids.to(self._target.device)
        return self._target.embed(ids, self.config.input_embedding_scale)  # [1, B, H]

    def _context(self) -> Tensor:
        states = torch.cat(self._new) if len(self._new) > 1 else self._new[0]
        self._new = []
        return self._drafter.context(states[None])  # [1, s, H]


class LookupProposer:
    """Prompt lookup: what followed the newest earlier occurrence of the last tokens."""

    taps: tuple[int, ...] = ()

    def __init__(self, *, block_size: int, longest: int = 3, shortest: int = 2) -> None:
        self._drafts = block_size - 1
        self._sizes = (longest, shortest)
        self.start()

    def start(self) -> None:
        self._index = NgramIndex(longest=self._sizes[0], shortest=self._sizes[1])

    def observe(self, states: Tensor | None) -> None:
        pass

    def propose(self, tokens: Sequence[int], *, limit: int, sampler: Sampler) -> Proposal:
        return Proposal(tokens=self._index.propose(tokens, limit=min(limit, self._drafts)))


def head_logits(config: DrafterConfig, target: TargetTaps, out: Tensor) -> Tensor:
    """The drafter's output through the target's head, with the transforms the config names."""
    logits = target.head(out.to(target.dtype)) * config.output_multiplier
    cap = config.final_logit_softcapping
    return torch.tanh(logits / cap) * cap if cap > 0 else logits


def untrained(config: DrafterConfig, *, seed: int) -> Drafter:
    """The same drafter before its first step: what the training is measured against."""
    state = torch.random.get_rng_state()
    try:
        torch.manual_seed(seed)
        return Drafter(config)
    finally:
        torch.random.set_rng_state(state)
