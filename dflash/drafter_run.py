"""One drafter rank: model, optimiser, where states come from, and the loop over steps."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from dflash.checkpoint import latest_checkpoint, load_state, not_resumable
from dflash.drafter import load_drafter
from dflash.errors import Interrupted
from dflash.feed import LocalFeed, RingFeed, peer_errors
from dflash.fused_layer import fused_works
from dflash.initial import fold_scale, initial_drafter, measure_scale, pass_last_tap
from dflash.losses import FrozenHead, LossOptions, block_loss
from dflash.meter import Meter
from dflash.prefetch import Prefetch
from dflash.random_states import rng_of_all, set_rng
from dflash.ranks import grace_left, group_of_drafters, launcher_alive
from dflash.run_plan import first_step, frozen_target, schedule_of
from dflash.run_record import RunRecord
from dflash.sampled_head import SampledHead
from dflash.schedule import learning_rate
from dflash.sharded import optimiser_for
from dflash.target import TargetTaps
from dflash.target_weights import TargetEnds
from dflash.turns import done_by_one
from dflash.validation import HeldOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from dflash.batches import DrafterRows, MicroBatch
    from dflash.drafter import Drafter
    from dflash.feed import Delivery, Feed
    from dflash.interrupt import StopRequest
    from dflash.losses import LossSums
    from dflash.optim import StepReport
    from dflash.ranks import Role
    from dflash.run_plan import Plan, Types
    from dflash.train_config import TrainConfig


class DrafterRun:
    """One drafter rank: model, optimiser, feed, and the loop over steps."""

    def __init__(self, config: TrainConfig, role: Role, made: Plan, types: Types) -> None:
        self.config, self.role, self.plan, self.types = config, role, made, types
        self.out = Path(config.out)
        self.group: Any = None
        if role.world > 1:
            self.group = group_of_drafters(role)
        self.newest = latest_checkpoint(self.out)
        self.record = RunRecord(config, role, made, step=first_step(config))
        self.drafter = self._drafter()
        self.optimiser, self.reducer = optimiser_for(self.drafter, config, self.group)
        self.record.begins(self.optimiser)
        self.scale: torch.Tensor | None = None  # known from the first micro-batch on
        self.step, self.elapsed_before, self.tokens = 0, 0.0, 0
        self._ahead: tuple[MicroBatch, DrafterRows] | None = None
        if self.newest is not None:
            self._resume(self.newest)
        self.held_out = HeldOut(config, made)
        for note in self.held_out.notes:
            self.record.phase(note)
        self.ends: TargetTaps | TargetEnds
        self.feed: Feed
        self.record.phase("loading the target")
        self._connect()
        self.options = self._loss_options()
        self.fixed = self._needs_one_shape()
        self.sample = self._sampled_head()
        self.meter = Meter(
            role, types.device, made.shape, made.weights.config, config.anchors_per_doc
        )

    def _drafter(self) -> Drafter:
        if self.newest is not None:
            return load_drafter(self.newest, self.types.drafter, self.types.device)[0]
        device = self.types.device
        fresh = initial_drafter(self.config, self.plan.shape, self.plan.weights, device)
        return fresh.to(dtype=self.types.drafter)

    def _connect(self) -> None:
        types, shape = self.types, self.plan.shape
        if self.role.colocated:
            model = frozen_target(self.config, types)
            self.ends = TargetTaps(model, shape.target_layer_ids)
            self.held_out.compute(self.role, self.ends, types.wire)
            self.feed = LocalFeed(self.ends, self.plan.batches, types.wire)
            return
        self.ends = TargetEnds(self.plan.weights, types.target, types.device)
        self.held_out.receive(self.role, types)
        self.feed = RingFeed(
            schedule_of(self.config, self.role, self.plan, self.step),
            self.role.drafter,
            self.plan.batches,
            width=shape.context_width,
            dtype=types.wire,
            device=types.device,
        )

    def _loss_options(self) -> LossOptions:
        config, shape = self.config, self.plan.shape
        return LossOptions(
            block_size=shape.block_size,
            kind=config.loss,
            gamma=config.decay_gamma(shape.block_size),
            dpace_alpha=config.dpace_alpha,
            chunk_rows=config.head_chunk_rows,
            output_multiplier=shape.output_multiplier,
            softcap=shape.final_logit_softcapping,
        )

    def _needs_one_shape(self) -> bool:
        """Whether missing blocks are filled up: compiled flex attention stalls on new shapes."""
        flex = self.config.attention == "flex"
        return self.types.device.type == "cuda" and (flex or not fused_works(self.drafter))

    def _sampled_head(self) -> SampledHead | None:
        if not self.config.head_sample:
            return None
        return SampledHead(
            self.plan.data,
            vocab_size=self.plan.shape.vocab_size,
            size=self.config.head_sample,
            seed=self.config.seed,
        )

    def _resume(self, folder: Path) -> None:
        state = load_state(folder)  # of this run: the plan has made sure
        self.scale = state["scale"].to(self.types.device)
        fold_scale(self.drafter, 1 / self.scale)
        try:
            self.optimiser.load_state_dict(state["optimiser"])
            if self.role.drafter < len(state["rng"]):
                set_rng(state["rng"][self.role.drafter])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise not_resumable(folder, f"{type(error).__name__}: {error}") from error
        self.step, self.tokens = int(state["step"]), int(state["tokens"])
        self.elapsed_before = float(state["elapsed_s"])

    # -- the loop

    def _fetch(self) -> tuple[MicroBatch, DrafterRows]:
        batch, rows = self.loader.take()
        return batch, rows.to(self.types.device)

    def _fetch_ahead(self) -> None:
        """The next inputs onto the device while it computes: the next step then begins at once."""
        if self.loader.left:
            self._ahead = self._fetch()

    def _next_inputs(self) -> tuple[MicroBatch, DrafterRows]:
        made, self._ahead = self._ahead or self._fetch(), None
        return made

    def _load(self, g: int) -> tuple[MicroBatch, DrafterRows]:
        batch = self.plan.batches.micro_batch(g)
        rows = self.plan.batches.drafter_rows(batch, fixed=self.fixed)
        return batch, rows.pinned() if self.types.device.type == "cuda" else rows

    def run(self, stop: StopRequest) -> None:
        count, role = self.config.micro_batches, self.role
        mine = range(self.step * count + role.drafter, self.plan.total * count, role.drafters)
        self.loader = Prefetch(mine, self._load)
        started = self.mark = time.monotonic()
        ended, asked_at = "steps", 0.0
        if self.step == self.plan.total:  # a kill came before the summary, or it was made elsewhere
            self.record.recall(self.step)
            self._save(self.elapsed_before, ended)
        while self.step < self.plan.total:
            launcher_alive()
            self._one_step()
            elapsed = self.elapsed_before + time.monotonic() - started
            ended = self._asked_to_end(stop, elapsed)
            asked_at = time.monotonic() if ended == "signal" else 0.0
            last = self.step == self.plan.total or ended != "steps"
            if last or self.step % self.config.save_every == 0:
                self._save(elapsed, ended if last else "running")
            if ended != "steps":
                break
        self.loader.close()
        if self.step < self.plan.total:
            self.feed.stop(self.step * self.config.micro_batches)
        self._close(ended, lambda: grace_left(stop.at or asked_at))
        if ended == "signal":
            raise Interrupted(
                f"Stopped by a signal after step {self.step} of {self.plan.total}; saved.",
                "Run the same command again to go on.",
            )
        message = "trained" if ended == "steps" else "time is up"
        self.record.progress.emit(
            "done",
            done=self.step,
            total=self.plan.total,
            unit="steps",
            message=message,
            metrics=self.record.last,
        )

    def _one_step(self) -> None:
        count, totals = self.config.micro_batches, []
        deliveries: list[Delivery] = []
        batches: list[MicroBatch] = []
        first = self.step * count
        for g in range(first + self.role.drafter, first + count, self.role.drafters):
            if self.reducer is not None and g + self.role.drafters >= first + count:
                self.reducer.expect_last()
            batch, rows = self._next_inputs()
            delivery = self.feed.take(batch)
            sums = self.micro_step(g, self._scaled(delivery.states), rows)
            self.feed.release(g)
            batches.append(batch)
            deliveries.append(delivery)
            totals.append(sums.totals())
        total = self._sum_over_drafters(sum(totals[1:], totals[0]))
        rate = learning_rate(self.step, self.plan.total, self.config, warmup=self.plan.warmup)
        report = self.optimiser.step(
            rate, divisor=total[1].clamp_min(1e-9), meanwhile=self._fetch_ahead
        )
        self.step += 1
        self.tokens += sum(map(self.plan.batches.tokens_of, range(first, first + count)))
        if self.role.leads:
            self._report(total, report, rate, batches, deliveries)

    def _close(self, ended: str, left: Callable[[], float | None]) -> None:
        """After a signal all wait for the lead: a rank that leaves with an exit code of its own
        makes torchrun kill the others, and the upload is to have its time.
        """
        if ended != "signal" or self.role.drafters == 1:
            self.record.close(left)
            return
        lead = self.role.rank_of_drafter(0)
        done_by_one(
            lambda: self.record.close(left), mine=self.role.leads, rank=lead, group=self.group
        )

    def _scaled(self, states: torch.Tensor) -> torch.Tensor:
        """Taps as fc reads them while training; the first micro-batch of all sets the scale."""
        if self.scale is None:
            self.scale = measure_scale(states)
            if self.config.init == "random":
                self.scale = torch.ones_like(self.scale)
            if self.role.drafters > 1:  # only the first drafter rank holds micro-batch 0
                with peer_errors("the first drafter rank"):
                    source = self.role.rank_of_drafter(0)
                    dist.broadcast(self.scale, source, group=self.group)
            if self.config.init_from:
                fold_scale(self.drafter, 1 / self.scale)
            elif self.config.init == "target":
                pass_last_tap(self.drafter, self.scale)
            self.optimiser.adopt()
        return states.to(self.types.drafter) * self.scale.to(self.types.drafter)

    def micro_step(self, g: int, states: torch.Tensor, rows: DrafterRows) -> LossSums:
        """Forward and backward over the blocks of one micro-batch."""
        scale = self.plan.shape.input_embedding_scale
        embeds = self.ends.embed(rows.block_ids[None], scale)
        out = self.drafter(
            embeds, states[None], rows.layout, self.config.attention, rows=rows.kept, repeated=True
        )
        head, labels, correction = self._head_for(g, rows)
        sums = block_loss(
            out[0].to(self.types.target),
            labels,
            rows.supervised,
            rows.slot,
            head,
            self.options,
            correction=correction,
            rows=rows.kept,
        )
        sums.loss.backward()
        self.optimiser.collect()
        return sums

    def _head_for(self, g: int, rows: DrafterRows) -> tuple[Any, torch.Tensor, Any]:
        """The head to use, labels as its rows count them, and what to add to its logits."""
        if self.sample is None:
            head = FrozenHead(self.ends.head_weight, self.ends.head_bias)
            return head, rows.labels, None
        drawn = self.sample.draw(g, rows.labels[rows.supervised])
        ids = drawn.ids.to(self.types.device)
        weight = self.ends.head_weight[ids]
        correction = drawn.correction.to(self.types.device)
        labels = drawn.place(rows.labels.cpu()).to(self.types.device)
        return FrozenHead(weight), labels, correction

    def _sum_over_drafters(self, totals: torch.Tensor) -> torch.Tensor:
        """Gradients and counts over all drafter ranks: one mean for the whole step."""
        if self.reducer is None:
            return totals
        self.reducer.finish()
        with peer_errors("another drafter rank"):
            dist.all_reduce(totals, group=self.group)
        return totals

    def _asked_to_end(self, stop: StopRequest, elapsed: float) -> str:
        """`signal` or `time` when any drafter rank has one; the same answer on all of them."""
        minutes = self.config.minutes
        flags = [bool(stop), minutes is not None and elapsed >= minutes * 60]
        if self.role.drafters > 1:
            votes = torch.tensor(flags, dtype=torch.long, device=self.types.device)
            with peer_errors("another drafter rank"):
                dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.group)
                flags = [bool(v) for v in votes]
        if self.step == self.plan.total:
            return "steps"
        return "signal" if flags[0] else "time" if flags[1] else "steps"

    def _report(
        self,
        total: torch.Tensor,
        report: StepReport,
        rate: float,
        batches: list[MicroBatch],
        deliveries: list[Delivery],
    ) -> None:
        now = time.monotonic()
        seconds, self.mark = now - self.mark, now
        size = self.plan.shape.block_size
        loss, divisor, accepted, blocks = total[:4].tolist()
        right, seen = total[4 : 4 + size], total[4 + size :]
        accuracy = (right / seen.clamp_min(1))[1:].tolist()
        metrics = {
            "loss": loss / max(divisor, 1e-9),
            "acceptance": 1 + accepted / max(blocks, 1),
            "slot_accuracy": accuracy,
            "lr": rate,
            "grad_norm": report.grad_norm,
            **self.meter.step(batches, deliveries, seconds),
        }
        if report.skipped:
            metrics["skipped"] = report.skipped
        self.record.step(self.step, metrics)

    def _validate(self) -> None:
        """Held-out scores of the weights as they are; every drafter rank takes part."""
        if not self.held_out:
            return
        self.drafter.eval()
        scores = self.held_out.scores(
            self.drafter, self.ends, self._scaled, self.options, self.types, self.group
        )
        self.drafter.train()
        self.record.validated(self.step, scores)

    def _save(self, elapsed: float, ended: str) -> None:
        if ended != "signal":  # who asks to stop does not wait for that
            self._validate()
        with peer_errors("another drafter rank"):
            optimiser = self.optimiser.state_dict()  # in slices, all ranks have a part in it
        rng = rng_of_all(self.group)
        if not self.role.leads:
            return
        assert self.scale is not None, "a step has set it"
        state = {
            "step": self.step,
            "total": self.plan.total,
            "tokens": self.tokens,
            "elapsed_s": elapsed,
            "data": self.plan.fingerprint,
            "config": self.config.to_json(),
            "optimiser": optimiser,
            "rng": rng,
            "scale": self.scale.cpu(),
        }
        fold_scale(self.drafter, self.scale)  # the files hold plain weights
        try:
            self.record.save(
                self.drafter,
                self.step,
                state,
                ended=ended,
                elapsed=elapsed,
                rates=self.meter.rates(),
            )
        finally:
            fold_scale(self.drafter, 1 / self.scale)
