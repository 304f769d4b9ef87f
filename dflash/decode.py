"""Decoding with a target and any proposer: plain, trained, untrained and lookup share this loop.

A round hands the target the last token and the proposer's drafts in one forward, keeps the leading
run that the target agrees with and adds the target's own next token. What the target produces is
therefore what it would have produced alone, up to float rounding; `evaluate` checks that.

Rejected drafts must leave no trace in the target's cache. Attention layers are cropped. Recurrent
layers (linear attention, convolutions) cannot be: their state is put back to before the round and
the accepted tokens are run again. Cropping alone leaves the rejected drafts inside the state and
makes the text depend on the drafter.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from dflash.errors import DflashError
from dflash.statistics import Round
from dflash.target import decoder_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

CacheState = list[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Drafts for the tokens after the last one; `probs` [n, V] when they were sampled."""

    tokens: list[int]
    probs: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one forward of the target gave."""

    logits: Tensor  # [n, V]; the last row only for a prompt
    states: Tensor | None  # [n, K*H], taps side by side; None when none were asked for


class Sampler(Protocol):
    """How a token is taken from logits, and how drafts are judged. Greedy or rejection."""

    def pick(self, logits: Tensor) -> Proposal: ...

    def judge(self, logits: Tensor, proposal: Proposal) -> tuple[int, int]: ...


class Proposer(Protocol):
    """Anything that guesses the next tokens. `observe` delivers states of tokens now certain."""

    taps: tuple[int, ...]

    def start(self) -> None: ...

    def observe(self, states: Tensor | None) -> None: ...

    def propose(self, tokens: Sequence[int], *, limit: int, sampler: Sampler) -> Proposal: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The new tokens of one prompt and how they came about."""

    tokens: list[int]
    rounds: list[Round]
    decode_s: float  # without the prompt's forward
    propose_s: float
    ended: str  # "stop" or "length"


class Greedy:
    """The most likely token; drafts hold while they equal it."""

    def pick(self, logits: Tensor) -> Proposal:
        return Proposal(tokens=logits.argmax(dim=-1).tolist())

    def judge(self, logits: Tensor, proposal: Proposal) -> tuple[int, int]:
        choices = logits.argmax(dim=-1).tolist()
        accepted = 0
        for draft, choice in zip(proposal.tokens, choices, strict=False):
            if draft != choice:
                break
            accepted += 1
        return accepted, choices[accepted]


class Rejection:
    """Sampling that keeps the target's distribution: accept with min(1, p/q), else max(p-q, 0)."""

    def __init__(
        self, *, temperature: float, top_p: float = 1.0, top_k: int = 0, seed: int = 0
    ) -> None:
        if temperature <= 0 or not 0 < top_p <= 1 or top_k < 0:
            raise DflashError(
                f"temperature {temperature}, top_p {top_p}, top_k {top_k} is no sampling",
                "Sampling needs temperature > 0, 0 < top_p <= 1, top_k >= 0; 0 means greedy.",
            )
        self.temperature, self.top_p, self.top_k = temperature, top_p, top_k
        self._rng = torch.Generator().manual_seed(seed)  # on the CPU: same draws on any device

    def probs(self, logits: Tensor) -> Tensor:
        scores = logits.float().cpu() / self.temperature  # [n, V]
        if 0 < self.top_k < scores.shape[-1]:
            lowest = scores.topk(self.top_k, dim=-1).values[..., -1:]
            scores = scores.masked_fill(scores < lowest, float("-inf"))
        probs = scores.softmax(dim=-1)
        if self.top_p < 1.0:
            ordered, order = probs.sort(dim=-1, descending=True)
            ordered = ordered * (ordered.cumsum(dim=-1) - ordered < self.top_p)
            probs = torch.zeros_like(probs).scatter(-1, order, ordered)
            probs = probs / probs.sum(dim=-1, keepdim=True)
        return probs

    def pick(self, logits: Tensor) -> Proposal:
        probs = self.probs(logits)
        drawn = torch.multinomial(probs, 1, generator=self._rng)[:, 0]
        return Proposal(tokens=drawn.tolist(), probs=probs)

    def judge(self, logits: Tensor, proposal: Proposal) -> tuple[int, int]:
        target = self.probs(logits)  # [n + 1, V]
        for slot, draft in enumerate(proposal.tokens):
            p = target[slot]
            # A proposer without a distribution was certain: q is one at its draft, zero elsewhere.
            q = p.new_zeros(p.shape) if proposal.probs is None else proposal.probs[slot]
            if proposal.probs is None:
                q[draft] = 1.0
            chance = torch.rand((), generator=self._rng)
            if chance * q[draft] < p[draft]:
                continue
            rest = (p - q).clamp_min(0)
            # All-zero only when p == q up to rounding; then p itself is the right distribution.
            return slot, self._draw(rest if rest.sum() > 0 else p)
        return len(proposal.tokens), self._draw(target[len(proposal.tokens)])

    def _draw(self, weights: Tensor) -> int:
        return int(torch.multinomial(weights, 1, generator=self._rng))


class TargetSession:
    """The frozen target with its cache for one sequence, its taps, and a way back."""

    def __init__(self, model: nn.Module, *, taps: Sequence[int] = ()) -> None:
        self.model: Any = model
        self.device = next(model.parameters()).device
        self.taps = tuple(taps)
        self._seen: dict[int, Tensor] = {}
        self._hooks = self._hook(decoder_of(model).layers)
        # The argument was renamed within transformers 5; the old name warns, then goes away.
        named = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in named else "past_key_values"
        self._cache: Any = None
        self._before: CacheState | None = None
        self._fed: list[int] = []

    def _hook(self, layers: Any) -> list[Any]:
        for tap in self.taps:
            if not 0 <= tap < len(layers):
                raise DflashError(
                    f"the drafter taps layer {tap}, the target has layers 0..{len(layers) - 1}",
                    "Give the target this drafter was trained for.",
                )

        def keep(tap: int) -> Callable[..., None]:
            def hook(_module: nn.Module, _args: Any, output: Any) -> None:
                self._seen[tap] = output[0] if isinstance(output, tuple) else output

            return hook

        return [layers[tap].register_forward_hook(keep(tap)) for tap in set(self.taps)]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def start(self, prompt: Sequence[int]) -> Step:
        """Forget everything and run the prompt; logits of its last token only."""
        from transformers import DynamicCache

        self._cache = DynamicCache(config=self.model.config)
        self._before, self._fed = None, []
        return self._forward(prompt, last_only=True)

    def verify(self, tokens: Sequence[int]) -> Step:
        """One forward over tokens that may turn out wrong; call `keep` before the next."""
        self._fed = list(tokens)
        needs_way_back = len(tokens) > 1 and not self.croppable
        self._before = self.state() if needs_way_back else None
        return self._forward(tokens, last_only=False)

    def keep(self, count: int) -> None:
        """The first `count` of the verified tokens are right; the others never happened."""
        assert 1 <= count <= len(self._fed)
        wrong = len(self._fed) - count
        if wrong and self.croppable:
            self._cache.crop(-wrong)
        elif wrong:
            assert self._before is not None
            self.restore(self._before)
            self._forward(self._fed[:count], last_only=True)
        self._before = None

    @property
    def croppable(self) -> bool:
        """Plain growing attention layers only; anything else is put back and run again."""
        from transformers.cache_utils import DynamicLayer

        return all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def state(self) -> CacheState:
        """A copy to `restore` from, any number of times."""
        return [_copied(vars(layer)) for layer in self._cache.layers]

    def restore(self, state: CacheState) -> None:
        for layer, values in zip(self._cache.layers, state, strict=True):
            vars(layer).clear()
            vars(layer).update(_copied(values))

    @torch.inference_mode()
    def _forward(self, tokens: Sequence[int], *, last_only: bool) -> Step:
        ids = torch.tensor([list(tokens)], dtype=torch.long, device=self.device)  # [1, n]
        self._seen.clear()
        output = self.model(
            input_ids=ids,
            use_cache=True,
            logits_to_keep=1 if last_only else 0,
            **{self._cache_name: self._cache},
        )
        states = None
        if self.taps:
            states = torch.cat([self._seen[tap][0] for tap in self.taps], dim=-1)  # [n, K*H]
        return Step(logits=output.logits[0], states=states)


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    """Growing keys and values are replaced, never written to: a reference is a copy of them."""
    return {k: v if k in {"keys", "values"} else _clone(v) for k, v in values.items()}


def _clone(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {k: _clone(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clone(v) for v in value]
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """A prompt that was run once, so that every method starts from the same state."""

    tokens: list[int]
    step: Step
    state: CacheState
    seconds: float


def prefill(session: TargetSession, prompt: Sequence[int]) -> Prefill:
    started = time.perf_counter()
    step = session.start(prompt)
    _synchronize(session.device)
    seconds = time.perf_counter() - started
    return Prefill(tokens=list(prompt), step=step, state=session.state(), seconds=seconds)


@torch.inference_mode()
def decode(
    session: TargetSession,
    start: Prefill,
    *,
    proposer: Proposer | None,
    sampler: Sampler,
    limit: int,
    stop_ids: frozenset[int],
) -> Decoded:
    """Up to `limit` new tokens; no proposer is plain decoding, one token a round."""
    session.restore(start.state)
    _synchronize(session.device)
    began, proposing = time.perf_counter(), 0.0
    tokens = [*start.tokens, sampler.pick(start.step.logits).tokens[-1]]
    rounds: list[Round] = []
    if proposer is not None:
        proposer.start()
        proposer.observe(_picked(session, proposer, start.step.states))
    while (left := limit - (len(tokens) - len(start.tokens))) > 0 and tokens[-1] not in stop_ids:
        proposal = Proposal(tokens=[])
        if proposer is not None and left > 1:
            mark = time.perf_counter()
            # The last of `left` tokens is the target's own, so more drafts than that are wasted.
            proposal = proposer.propose(tokens, limit=left - 1, sampler=sampler)
            proposing += time.perf_counter() - mark
        step = session.verify([tokens[-1], *proposal.tokens])
        accepted, extra = sampler.judge(step.logits, proposal)
        new = _until_stop([*proposal.tokens[:accepted], extra], stop_ids)
        session.keep(len(new))
        if proposer is not None and step.states is not None:
            # States of the anchor and the accepted drafts; the newest token has none yet.
            proposer.observe(_picked(session, proposer, step.states[: len(new)]))
        tokens += new
        rounds.append(Round(proposed=len(proposal.tokens), accepted=accepted, produced=len(new)))
    _synchronize(session.device)
    return Decoded(
        tokens=tokens[len(start.tokens) :],
        rounds=rounds,
        decode_s=time.perf_counter() - began,
        propose_s=proposing,
        ended="stop" if tokens[-1] in stop_ids else "length",
    )


def _picked(session: TargetSession, proposer: Proposer, states: Tensor | None) -> Tensor | None:
    """The proposer's own taps out of the session's."""
    if states is None or not proposer.taps or proposer.taps == session.taps:
        return states if proposer.taps else None
    width = states.shape[-1] // len(session.taps)
    parts = states.split(width, dim=-1)
    return torch.cat([parts[session.taps.index(tap)] for tap in proposer.taps], dim=-1)


def _until_stop(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
