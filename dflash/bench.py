"""One prompt through every method on one loaded target: the work of an evaluation worker.

Every method starts from the same prompt state, so that only decoding is timed. A text that differs
from the plain one is not hidden: the first differing token is looked at again without any cache,
and the gap between the two candidates' logits says whether rounding could have flipped them.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash.decode import Decoded, Greedy, Rejection, TargetSession, decode, prefill
from dflash.drafter import load_drafter
from dflash.errors import DflashError
from dflash.proposers import DrafterProposer, LookupProposer, untrained
from dflash.target import TargetTaps, load_target

if TYPE_CHECKING:
    from dflash.config import DrafterConfig
    from dflash.decode import Proposer, Sampler

PLAIN, TRAINED, UNTRAINED, LOOKUP = "plain", "trained", "untrained", "lookup"
BASELINES = (UNTRAINED, LOOKUP)
WARM_UP = 4
TIE_ULPS = {torch.float32: 1024, torch.float64: 1024}
"""How many units in the last place of the largest logit two candidates may lie apart and count as
tied. Rounding piles up over layers in fp32; a bf16 unit is already that coarse."""
TIE_ULPS_COARSE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSpec:
    """Everything a worker needs; plain values, so that it travels to another process."""

    target: str
    drafter: str
    methods: tuple[str, ...]
    dtype: str
    device: str
    threads: int | None
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    lookup_longest: int = 3
    lookup_shortest: int = 2


class Bench:
    """The loaded target with one proposer per method."""

    def __init__(self, spec: BenchSpec) -> None:
        self.spec = spec
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        dtype = getattr(torch, spec.dtype)
        self.model: Any = load_target(Path(spec.target), dtype, spec.device)
        drafter, config = load_drafter(Path(spec.drafter), dtype, spec.device)
        check_fit(config, self.model.config.get_text_config().to_dict())
        taps = TargetTaps(self.model, config.target_layer_ids)
        self.session = TargetSession(self.model, taps=config.target_layer_ids)
        self.proposers: dict[str, Proposer | None] = {}
        for method in spec.methods:
            if method == PLAIN:
                self.proposers[method] = None
            elif method == LOOKUP:
                self.proposers[method] = LookupProposer(
                    block_size=config.block_size,
                    longest=spec.lookup_longest,
                    shortest=spec.lookup_shortest,
                )
            else:
                fresh = untrained(config, seed=spec.seed).to(device=spec.device, dtype=dtype)
                module = drafter if method == TRAINED else fresh
                module.eval().requires_grad_(requires_grad=False)
                self.proposers[method] = DrafterProposer(module, taps)

    def warm_up(self, prompt: list[int]) -> None:
        """First calls allocate and compile; nobody's time should contain that."""
        start = prefill(self.session, prompt[: 4 * WARM_UP])
        for method, proposer in self.proposers.items():
            decode(
                self.session,
                start,
                proposer=proposer,
                sampler=self._sampler("warm-up", method),
                limit=WARM_UP,
                stop_ids=frozenset(),
            )

    def evaluate(self, prompt_id: str, prompt: list[int]) -> dict[str, Any]:
        """The record of one prompt, ready for JSON."""
        spec = self.spec
        start = prefill(self.session, prompt)
        methods: dict[str, dict[str, Any]] = {}
        for method, proposer in self.proposers.items():
            decoded = decode(
                self.session,
                start,
                proposer=proposer,
                sampler=self._sampler(prompt_id, method),
                limit=spec.max_new_tokens,
                stop_ids=frozenset(spec.stop_ids),
            )
            methods[method] = _record(decoded)
            if spec.temperature == 0 and method != PLAIN:
                methods[method]["divergence"] = self._divergence(
                    prompt, methods[PLAIN]["tokens"], decoded.tokens
                )
        return {
            "id": prompt_id,
            "prompt_tokens": len(prompt),
            "prefill_s": start.seconds,
            "methods": methods,
        }

    def _sampler(self, prompt_id: str, method: str) -> Sampler:
        spec = self.spec
        if spec.temperature == 0:
            return Greedy()
        # From the prompt, not from a running count: the same text whichever worker gets it.
        text = f"{spec.seed} {prompt_id} {method}".encode()
        seed = int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
        return Rejection(
            temperature=spec.temperature, top_p=spec.top_p, top_k=spec.top_k, seed=seed
        )

    @torch.inference_mode()
    def _divergence(
        self, prompt: list[int], plain: list[int], other: list[int]
    ) -> dict[str, Any] | None:
        """The first token where a method's greedy text leaves the plain one; None when equal."""
        if plain == other:
            return None
        both = zip(plain, other, strict=False)
        at = next((i for i, (a, b) in enumerate(both) if a != b), min(len(plain), len(other)))
        if at in (len(plain), len(other)):
            return {"index": at, "kind": "length", "plain": len(plain), "other": len(other)}
        ids = torch.tensor([prompt + plain[:at]], device=self.session.device)
        logits = self.model(input_ids=ids, use_cache=False, logits_to_keep=1).logits[0, -1]
        margin = float(logits[plain[at]].float() - logits[other[at]].float())
        tolerance = tie_tolerance(logits)
        # Only a tie at the top excuses: of two unlikely tokens neither is what greedy would take.
        short = float(logits.float().max() - min(logits[plain[at]], logits[other[at]]).float())
        return {
            "index": at,
            "kind": "near_tie" if short <= tolerance else "diverged",
            "plain": plain[at],
            "other": other[at],
            "margin": margin,
            "below_best": short,
            "tolerance": tolerance,
        }


def tie_tolerance(logits: torch.Tensor) -> float:
    """How far below the best logit of [V] a token may lie and still be a tie up to rounding."""
    ulps = TIE_ULPS.get(logits.dtype, TIE_ULPS_COARSE)
    return ulps * torch.finfo(logits.dtype).eps * float(logits.abs().max())


def _record(decoded: Decoded) -> dict[str, Any]:
    record = asdict(decoded)
    record["rounds"] = [[r.proposed, r.accepted, r.produced] for r in decoded.rounds]
    return record


def check_fit(drafter: DrafterConfig, target: dict[str, Any]) -> None:
    """A drafter of another target runs without an error and accepts next to nothing: refuse it."""
    pairs = (
        ("hidden_size", drafter.hidden_size, target.get("hidden_size")),
        ("vocab_size", drafter.vocab_size, target.get("vocab_size")),
        ("number of target layers", drafter.num_target_layers, target.get("num_hidden_layers")),
    )
    for name, ours, theirs in pairs:
        if ours != theirs:
            raise DflashError(
                f"the drafter was made for another target: its {name} is {ours}, "
                f"the target's is {theirs}",
                "Give --target the model this drafter was trained for.",
            )
