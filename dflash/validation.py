"""How good the drafter is on held-out documents, while it trains.

The target is frozen, so what it says of held-out text never changes: its states, and its own greedy
continuation of a few prompts, are made once before the first step and kept in host memory by the
drafter ranks. Greedy drafting with verification gives that same continuation whatever the drafter,
hence its true acceptance length needs no target: walk the text, round by round, and count.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist

from dflash.batches import Batches, MicroBatch
from dflash.errors import InputInvalid
from dflash.feed import packed_states, peer_errors
from dflash.heldout import from_tokenized
from dflash.losses import FrozenHead, block_loss
from dflash.shards import Row, TokenizedSet
from dflash.walk import leading_runs, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from dflash.batches import DrafterRows
    from dflash.drafter import Drafter
    from dflash.losses import LossOptions
    from dflash.ranks import Role
    from dflash.run_plan import Plan, Types
    from dflash.target import TargetTaps
    from dflash.target_weights import TargetEnds
    from dflash.train_config import TrainConfig

MOST_ANCHORS = 32
"""Blocks of a held-out document: the mean over documents settles long before that many."""
LONGEST_PROMPT = 1024
IDS_TAG, STATES_TAG = 11, 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one drafter rank looks at in one go."""

    batch: MicroBatch
    rows: DrafterRows
    states: Tensor  # [tokens, K*H], in host memory
    prompt: int = 0
    """Tokens before the target's own greedy text; 0: documents of the set."""


class HeldOut:
    """The held-out documents and prompts of a run; equal on every rank, models not included."""

    def __init__(self, config: TrainConfig, made: Plan) -> None:
        self.config, self.shape = config, made.shape
        self.mine: list[Piece] = []
        self.documents: list[MicroBatch] = []
        self.prompts: list[list[int]] = []
        self.notes: list[str] = []
        """What is not evaluated, and why."""
        if not config.eval_docs or config.random_weights:
            return
        splits = made.data.manifest.get("splits", {})
        found = splits.get(config.eval_split) or {}
        if not found.get("rows") or config.eval_split == config.split:
            why = "is trained on" if found else f"is not in {config.data}"
            self.notes.append(
                f"nothing is evaluated, and no checkpoint is the best: the part "
                f"{config.eval_split!r} {why}"
            )
            return
        self.data = TokenizedSet(config.data, config.eval_split)
        self.batches = Batches(
            self.data,
            anchors_per_doc=min(config.anchors_per_doc, MOST_ANCHORS),
            block_size=made.shape.block_size,
            mask_token_id=made.shape.mask_token_id,
            max_length=config.max_length,
            seed=0,
            batch_tokens=max(config.batch_tokens, config.max_length),
            batch_blocks=max(config.batch_blocks, MOST_ANCHORS),
        )
        self.documents = list(self._documents(config.eval_docs))
        self.prompts = self._prompts()

    def _documents(self, wanted: int) -> Iterator[MicroBatch]:
        for number in range(self.batches.per_epoch):
            if wanted <= 0:
                return
            batch = self.batches.micro_batch(number)
            yield replace(batch, rows=batch.rows[:wanted], documents=batch.documents[:wanted])
            wanted -= len(batch.rows)

    def _prompts(self) -> list[list[int]]:
        if not self.config.eval_prompts:
            return []
        longest = min(LONGEST_PROMPT, self.config.max_length - self.config.eval_tokens)
        try:
            found = from_tokenized(
                self.data.path,
                split=self.config.eval_split,
                limit=self.config.eval_prompts,
                longest=longest,
                seed=0,
            )
        except InputInvalid:
            self.notes.append(
                f"the true acceptance length is not measured: no prompt of "
                f"{self.config.eval_split!r} has at most {longest} tokens"
            )
            return []
        return [prompt.tokens for prompt in found.prompts if prompt.tokens]

    def __bool__(self) -> bool:
        return bool(self.documents)

    # -- before the first step: from the targets to the drafters

    def send(self, role: Role, taps: TargetTaps, wire: torch.dtype) -> None:
        """A target rank's part."""
        for number, (batch, prompt) in enumerate(self._pieces(taps, role.rank, role.targets)):
            drafter = role.rank_of_drafter(self._owner(role, number, role.rank))
            states = self._states(taps, batch, wire)
            ids = torch.from_numpy(np.concatenate([r.input_ids for r in batch.rows]).astype("i8"))
            with peer_errors(f"drafter rank {drafter}"):
                dist.send(torch.tensor([prompt, len(ids)]), drafter, tag=IDS_TAG)
                dist.send(ids, drafter, tag=IDS_TAG)
                dist.send(states, drafter, tag=STATES_TAG)

    def receive(self, role: Role, types: Types) -> None:
        """A drafter rank's part, when others run the target."""
        for number in range(len(self)):
            target = number % role.targets
            if number % role.drafters != role.drafter:
                continue
            with peer_errors(f"target rank {target}"):
                head = torch.zeros(2, dtype=torch.long)
                dist.recv(head, target, tag=IDS_TAG)
                prompt, count = head.tolist()
                ids = torch.zeros(count, dtype=torch.long)
                dist.recv(ids, target, tag=IDS_TAG)
                shape = (count, self.shape.context_width)
                states = torch.empty(shape, dtype=types.wire, device=types.device)
                dist.recv(states, target, tag=STATES_TAG)
            batch = self.documents[number] if not prompt else _text(number, ids.numpy(), prompt)
            self._keep(batch, states, prompt)

    def compute(self, role: Role, taps: TargetTaps, wire: torch.dtype) -> None:
        """A rank's part that runs both."""
        for batch, prompt in self._pieces(taps, role.drafter, role.drafters):
            self._keep(batch, self._states(taps, batch, wire), prompt)

    def __len__(self) -> int:
        return len(self.documents) + len(self.prompts)

    def _owner(self, role: Role, turn: int, target: int) -> int:
        """The drafter rank of a target rank's piece."""
        return (target + turn * role.targets) % role.drafters

    def _pieces(self, taps: TargetTaps, first: int, every: int) -> Iterator[tuple[MicroBatch, int]]:
        for number in range(first, len(self), every):
            if number < len(self.documents):
                yield self.documents[number], 0
                continue
            prompt = self.prompts[number - len(self.documents)]
            ids = np.array(prompt + _greedy(taps, prompt, self.config.eval_tokens), dtype=np.int32)
            yield _text(number, ids, len(prompt)), len(prompt)

    def _states(self, taps: TargetTaps, batch: MicroBatch, wire: torch.dtype) -> Tensor:
        states = torch.empty(batch.tokens, taps.width, dtype=wire, device=taps.device)
        packed_states(taps, self.batches, batch, states)
        return states

    def _keep(self, batch: MicroBatch, states: Tensor, prompt: int) -> None:
        every = len(batch.rows[0].input_ids) if prompt else None
        rows = self.batches.drafter_rows(batch, anchors=every)
        self.mine.append(Piece(batch=batch, rows=rows, states=states.cpu(), prompt=prompt))

    # -- at a checkpoint

    @torch.no_grad()
    def scores(
        self,
        drafter: Drafter,
        ends: TargetTaps | TargetEnds,
        scaled: Callable[[Tensor], Tensor],
        options: LossOptions,
        types: Types,
        group: Any,
    ) -> dict[str, Any]:
        """Loss, accuracy and acceptance over all ranks' pieces; every drafter rank takes part."""
        totals: Tensor | None = None
        walked = torch.zeros(2, dtype=torch.double)
        head = FrozenHead(ends.head_weight, ends.head_bias)
        for piece in self.mine:
            rows = piece.rows.to(types.device)
            embeds = ends.embed(rows.block_ids[None], self.shape.input_embedding_scale)
            states = scaled(piece.states.to(types.device))
            out = drafter(embeds, states[None], rows.layout, self.config.attention)[0]
            out = out.to(types.target)
            if piece.prompt:
                walked += self._walk(leading_runs(out, rows, head, options))
                continue
            sums = block_loss(out, rows.labels, rows.supervised, rows.slot, head, options)
            part = sums.totals()
            totals = part if totals is None else totals + part
        size = self.shape.block_size
        if totals is None:
            totals = torch.zeros(4 + 2 * size, dtype=torch.double, device=types.device)
        if group is not None and self.config.drafters > 1:
            walked = walked.to(types.device)
            with peer_errors("another drafter rank"):
                dist.all_reduce(totals, group=group)
                dist.all_reduce(walked, group=group)
        loss, divisor, accepted, blocks = totals[:4].tolist()
        right, seen = totals[4 : 4 + size], totals[4 + size :]
        found = {
            "heldout_loss": loss / max(divisor, 1e-9),
            "heldout_acceptance": 1 + accepted / max(blocks, 1),
            "heldout_slot_accuracy": (right / seen.clamp_min(1))[1:].tolist(),
        }
        produced, rounds = walked.tolist()
        if rounds:
            found["heldout_greedy_acceptance"] = produced / rounds
        return found

    def _walk(self, runs: Tensor) -> Tensor:
        """[2] tokens produced and rounds of drafting the greedy text of one prompt."""
        size, limit = self.shape.block_size, self.config.eval_tokens
        rounds = walk(runs.tolist(), block_size=size, limit=limit)
        return torch.tensor([sum(r.produced for r in rounds), len(rounds)], dtype=torch.double)


def _text(number: int, ids: np.ndarray, prompt: int) -> MicroBatch:
    """A prompt with its greedy text: every token of that is supervised."""
    mask = (np.arange(len(ids)) >= prompt).astype(np.uint8)
    row = Row(id=f"greedy-{number}", input_ids=ids.astype(np.int32), loss_mask=mask)
    return MicroBatch(number=number, epoch=0, documents=(0,), rows=(row,))


def _greedy(taps: TargetTaps, prompt: list[int], count: int) -> list[int]:
    """The target's own continuation, token by token."""
    from dflash.decode import Greedy, TargetSession, decode, prefill

    with contextlib.closing(TargetSession(taps.model)) as session:
        start = prefill(session, prompt)
        found = decode(
            session, start, proposer=None, sampler=Greedy(), limit=count, stop_ids=frozenset()
        )
    return found.tokens
