"""`dflash train`: online training of a drafter, states straight from the target's ranks.

The same code for one process (`--colocated`), M target and N drafter processes, and torchrun. The
sequence of data follows from the seed alone and a resume continues it exactly, so every step that
was reported is in a checkpoint or will be computed again alike.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.config import DrafterConfig, choose_mask_token
from dflash.errors import EXIT_FAILED, DflashError, Interrupted, UsageError
from dflash.files import read_json, write_json
from dflash.progress import Progress, write_out
from dflash.train_config import TrainConfig, contract_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from dflash.batches import Batches, DrafterRows
    from dflash.drafter import Drafter
    from dflash.feed import Delivery, Feed, Schedule
    from dflash.interrupt import StopRequest
    from dflash.losses import LossOptions, LossSums
    from dflash.optim import StepReport
    from dflash.ranks import Role
    from dflash.sampled_head import SampledHead
    from dflash.shards import TokenizedSet
    from dflash.target import TargetTaps
    from dflash.target_weights import TargetEnds, TargetWeights

RUN, SUMMARY, METRICS = "run.json", "train.json", "metrics.jsonl"
EXAMPLE = """example:
  dflash train --target models/qwen3 --data tokenized --out run --layers 5 --block-size 16 \\
      --anchors-per-doc 512 --batch-docs 4 --steps 2000 --targets 3 --drafters 1
"""


# ---- the command ------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("--config", type=Path, help="JSON file with any of these options")
    kinds: dict[str, Any] = {"int": int, "float": float, "str": str}
    for field in dataclasses.fields(TrainConfig):
        flag = "--" + field.name.replace("_", "-")
        shown = None if field.default is dataclasses.MISSING else field.default
        common: dict[str, Any] = {"dest": field.name, "default": argparse.SUPPRESS}
        note = f"default {shown}" if shown is not None else "required" if shown is None else ""
        if field.default is None:
            note = "optional"
        kind = str(field.type).removesuffix(" | None")
        if kind == "bool":
            parser.add_argument(flag, action="store_true", help="one process does it all", **common)
        elif kind.startswith("tuple"):
            parse = _integers if "int" in kind else _numbers
            parser.add_argument(flag, type=parse, metavar="A,B", help=note, **common)
        else:
            parser.add_argument(flag, type=kinds[kind], help=note, **common)


def _integers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def config_from(args: argparse.Namespace) -> TrainConfig:
    """The options of the file, overridden by those on the command line."""
    given = {name: value for name, value in vars(args).items() if name in _names()}
    values = read_json(args.config, "training configuration") if args.config else {}
    values = values | given
    missing = [name for name in ("target", "data", "out") if not values.get(name)]
    if missing:
        raise UsageError(f"{', '.join('--' + name for name in missing)} is missing.", EXAMPLE)
    return TrainConfig.from_json(values)


def _names() -> set[str]:
    return {field.name for field in dataclasses.fields(TrainConfig)}


def run(args: argparse.Namespace) -> int:
    from dflash.ranks import under_launcher

    config = config_from(args)
    if under_launcher():  # torchrun started this process as one of many
        return rank_main(config)
    write_out(train(config))
    return 0


def train(config: TrainConfig) -> dict[str, Any]:
    """Train to the end, or go on from the newest checkpoint in `out`; returns the summary."""
    from dflash.checkpoint import remove_partial
    from dflash.ranks import Role, launch

    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    with _only_run(out):
        finished = finished_summary(config)
        if finished is not None:
            return finished
        remove_partial(out)
        plan(config)  # what is wrong with the input is said here, before any process starts
        write_json(out / RUN, config.to_json())
        role = Role.of(config, 0)
        if role.world == 1:
            run_rank(config, role)
        else:
            launch(config, out / RUN, out)
    return read_json(out / SUMMARY, "training summary")


@contextlib.contextmanager
def _only_run(out: Path) -> Iterator[None]:
    with (out / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DflashError(
                f"Another training run writes to {out}.", "Wait for it, or choose another --out."
            ) from None
        yield


def finished_summary(config: TrainConfig) -> dict[str, Any] | None:
    """The summary of a run that needs nothing more under these options."""
    from dflash.checkpoint import latest_checkpoint

    out = Path(config.out)
    newest = latest_checkpoint(out)
    if newest is None or not (out / SUMMARY).is_file():
        return None
    summary = read_json(out / SUMMARY, "training summary")
    same = Path(summary["checkpoint"]).name == newest.name and not contract_changes(
        summary["config"], config
    )
    limits = ("steps", "tokens", "epochs", "minutes")
    asked = config.to_json()
    unchanged = all(summary["config"].get(name) == asked[name] for name in limits)
    unchanged = unchanged and summary["data"] == fingerprint(config)
    return summary if same and unchanged and summary["ended"] != "signal" else None


# ---- what a run is made of --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything about a run that follows from its options and inputs; equal on every rank."""

    shape: DrafterConfig
    weights: TargetWeights
    data: TokenizedSet
    batches: Batches
    total: int
    """Optimiser steps of the whole run."""
    fingerprint: str
    """Of the training data: a resume on other data is refused."""


def plan(config: TrainConfig) -> Plan:
    """Open the inputs and decide shape and length of the run."""
    from dflash.batches import Batches
    from dflash.checkpoint import latest_checkpoint
    from dflash.shards import TokenizedSet
    from dflash.target_weights import TargetWeights

    weights = TargetWeights(config.target)
    data = TokenizedSet(config.data, config.split)
    newest = latest_checkpoint(Path(config.out))
    source = newest or (Path(config.init_from) if config.init_from else None)
    if source is not None:
        shape = DrafterConfig.from_hf(read_json(source / "config.json", "drafter's config"))
    else:
        shape = DrafterConfig.from_target_config(
            weights.config,
            num_layers=config.layers,
            block_size=config.block_size,
            taps=config.taps,
            num_taps=config.num_taps,
            sliding_window=config.sliding_window,
            mask_token_id=_mask_token(config, weights, data),
        )
    batches = Batches(
        data,
        batch_docs=config.batch_docs,
        anchors_per_doc=config.anchors_per_doc,
        block_size=shape.block_size,
        mask_token_id=shape.mask_token_id,
        max_length=config.max_length,
        seed=config.seed,
    )
    return Plan(
        shape=shape,
        weights=weights,
        data=data,
        batches=batches,
        total=total_steps(config, batches),
        fingerprint=fingerprint(config),
    )


def fingerprint(config: TrainConfig) -> str:
    """Of the training data, from its manifest."""
    manifest = read_json(Path(config.data) / "manifest.json", "tokenized set's manifest")
    shards = manifest.get("splits", {}).get(config.split, {}).get("shards", [])
    return hashlib.sha256(json.dumps([s["sha256"] for s in shards]).encode()).hexdigest()


def total_steps(config: TrainConfig, batches: Batches) -> int:
    """The smallest of the limits given; whole epochs when none is."""
    limits = []
    if config.steps is not None:
        limits.append(config.steps)
    if config.tokens is not None:
        limits.append(int(config.tokens / (batches.mean_tokens * config.micro_batches)))
    if not limits:
        limits.append(int(config.epochs * batches.per_epoch / config.micro_batches))
    return max(1, min(limits))


def _mask_token(config: TrainConfig, weights: TargetWeights, data: TokenizedSet) -> int:
    text = weights.config.get("text_config", weights.config)
    vocab = int(text["vocab_size"])
    special = [text.get(f"{name}_token_id") for name in ("eos", "bos", "pad", "unk")]
    taken = [i for s in special if s is not None for i in (s if isinstance(s, list) else [s])]
    if config.mask_token is None:
        tokenizer = read_json(Path(config.target) / "tokenizer.json", "target's tokenizer")
        chosen = choose_mask_token(vocab, tokenizer, taken)
        if not _occurs(data, chosen):
            return chosen
        seen = {int(t) for i in range(len(data)) for t in set(data.row(i).input_ids.tolist())}
        return choose_mask_token(vocab, tokenizer, taken, in_data=sorted(seen))
    if config.mask_token in taken or _occurs(data, config.mask_token):
        raise DflashError(
            f"Token {config.mask_token} cannot be the mask: it ends or pads texts, or occurs in "
            f"{config.data}.",
            "Name an embedding row that never occurs, or leave --mask-token out.",
        )
    return config.mask_token


def _occurs(data: TokenizedSet, token: int) -> bool:
    return any(bool((data.row(i).input_ids == token).any()) for i in range(len(data)))


# ---- one rank ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Types:
    """Number types and place of one rank's tensors."""

    device: torch.device
    target: torch.dtype
    drafter: torch.dtype
    wire: torch.dtype

    @classmethod
    def of(cls, config: TrainConfig) -> Types:
        import os

        import torch

        cuda = torch.cuda.is_available()
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else None
        automatic = torch.bfloat16 if cuda else torch.float32
        named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "auto": automatic}
        if device is not None:
            torch.cuda.set_device(device)
        return cls(
            device=device or torch.device("cpu"),
            target=automatic,
            drafter=named[config.dtype],
            wire=named[config.wire_dtype],
        )


def rank_main(config: TrainConfig) -> int:
    """Entry of a process that is one rank of many; leaves the reason of a failure in a file."""
    import torch
    import torch.distributed as dist

    from dflash.ranks import join_group, record_error

    role = join_group(config, cuda=torch.cuda.is_available())
    try:
        run_rank(config, role)
    except DflashError as error:
        record_error(Path(config.out), role, error)
        sys.stderr.write(f"dflash train, {role.label}: {error.message}\n")
        return error.exit_code
    dist.destroy_process_group()
    return 0


def run_rank(config: TrainConfig, role: Role) -> None:
    """Do this rank's part of the run."""
    from dflash.interrupt import StopRequest

    types = Types.of(config)
    made = plan(config)
    with StopRequest() as stop:
        if role.is_drafter:
            drafter = DrafterRun(config, role, made, types)
            drafter.run(stop)
        else:
            run_target(config, role, made, types)


def run_target(config: TrainConfig, role: Role, made: Plan, types: Types) -> None:
    """Serve states until the schedule ends or the drafters stop."""
    import torch.distributed as dist

    from dflash.feed import serve_states
    from dflash.ranks import launcher_alive
    from dflash.target import TargetTaps, load_target

    dist.new_group([role.rank_of_drafter(d) for d in range(role.drafters)])  # all ranks must call
    model = load_target(config.target, types.target, types.device)
    serve_states(
        schedule_of(config, role, made, first_step(config)),
        role.rank,
        TargetTaps(model, made.shape.target_layer_ids),
        made.batches,
        dtype=types.wire,
        rank_of_drafter=role.rank_of_drafter,
        alive=launcher_alive,
    )


def first_step(config: TrainConfig) -> int:
    """Where the run goes on; the name of the newest checkpoint says it."""
    from dflash.checkpoint import latest_checkpoint

    newest = latest_checkpoint(Path(config.out))
    return int(newest.name.removeprefix("step-")) if newest else 0


def schedule_of(config: TrainConfig, role: Role, made: Plan, step: int) -> Schedule:
    from dflash.feed import Schedule

    return Schedule(
        targets=max(1, role.targets),
        drafters=role.drafters,
        ring=config.ring,
        first=step * config.micro_batches,
        end=made.total * config.micro_batches,
    )


class DrafterRun:
    """One drafter rank: model, optimiser, feed, and the loop over steps."""

    def __init__(self, config: TrainConfig, role: Role, made: Plan, types: Types) -> None:
        import torch.distributed as dist

        from dflash.checkpoint import latest_checkpoint
        from dflash.optim import Optimiser

        self.config, self.role, self.plan, self.types = config, role, made, types
        self.out = Path(config.out)
        self.group: Any = None
        if role.world > 1:
            self.group = dist.new_group([role.rank_of_drafter(d) for d in range(role.drafters)])
        self.progress = Progress(echo=sys.stderr) if role.leads else Progress("/dev/null")
        self.metrics = Progress(self.out / METRICS) if role.leads else Progress("/dev/null")
        self.progress.emit("phase", message="loading the target")
        self.newest = latest_checkpoint(self.out)
        self.drafter = self._drafter()
        self.optimiser = Optimiser(self.drafter, config)
        self.scale: torch.Tensor | None = None  # known from the first micro-batch on
        self.step, self.elapsed_before, self.tokens = 0, 0.0, 0
        if self.newest is not None:
            self._resume(self.newest)
        self.ends: TargetTaps | TargetEnds
        self.feed: Feed
        self._connect()
        self.options = self._loss_options()
        self.sample = self._sampled_head()
        self.last: dict[str, Any] = {}

    def _drafter(self) -> Drafter:
        from dflash.drafter import load_drafter
        from dflash.initial import initial_drafter

        if self.newest is not None:
            return load_drafter(self.newest, self.types.drafter, self.types.device)[0]
        fresh = initial_drafter(self.config, self.plan.shape, self.plan.weights)
        return fresh.to(device=self.types.device, dtype=self.types.drafter)

    def _connect(self) -> None:
        from dflash.feed import LocalFeed, RingFeed
        from dflash.target import TargetTaps, load_target
        from dflash.target_weights import TargetEnds

        types, shape = self.types, self.plan.shape
        if self.role.colocated:
            model = load_target(self.config.target, types.target, types.device)
            self.ends = TargetTaps(model, shape.target_layer_ids)
            self.feed = LocalFeed(self.ends, self.plan.batches, types.wire)
            return
        self.ends = TargetEnds(self.plan.weights, types.target, types.device)
        self.feed = RingFeed(
            schedule_of(self.config, self.role, self.plan, self.step),
            self.role.drafter,
            self.plan.batches,
            width=shape.context_width,
            dtype=types.wire,
            device=types.device,
        )

    def _loss_options(self) -> LossOptions:
        from dflash.losses import LossOptions

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

    def _sampled_head(self) -> SampledHead | None:
        from dflash.sampled_head import SampledHead

        if not self.config.head_sample:
            return None
        return SampledHead(
            self.plan.data,
            vocab_size=self.plan.shape.vocab_size,
            size=self.config.head_sample,
            seed=self.config.seed,
        )

    def _resume(self, folder: Path) -> None:
        import torch

        from dflash.checkpoint import load_state
        from dflash.initial import fold_scale

        state = load_state(folder)
        changes = contract_changes(state["config"], self.config)
        if state["total"] != self.plan.total:
            changes.append(f"steps in all: {state['total']} then, {self.plan.total} now")
        if state["data"] != self.plan.fingerprint:
            changes.append("the training data is another")
        if changes:
            raise DflashError(
                f"{folder} is of a different run: {'; '.join(changes)}.",
                "Restore the old options to resume, or choose another --out "
                "(with --init-from to start from these weights).",
            )
        self.scale = state["scale"].to(self.types.device)
        fold_scale(self.drafter, 1 / self.scale)
        self.optimiser.load_state_dict(state["optimiser"])
        torch.set_rng_state(state["rng"])
        self.step, self.tokens = int(state["step"]), int(state["tokens"])
        self.elapsed_before = float(state["elapsed_s"])

    # -- the loop

    def run(self, stop: StopRequest) -> None:
        from dflash.ranks import launcher_alive

        started = self.mark = time.monotonic()
        ended = "steps"
        while self.step < self.plan.total:
            launcher_alive()
            self._one_step()
            elapsed = self.elapsed_before + time.monotonic() - started
            ended = self._asked_to_end(stop, elapsed)
            last = self.step == self.plan.total or ended != "steps"
            if last or self.step % self.config.save_every == 0:
                self._save(elapsed, ended)
            if ended != "steps":
                break
        if self.step < self.plan.total:
            self.feed.stop(self.step * self.config.micro_batches)
        if ended == "signal":
            raise Interrupted(
                f"Stopped by a signal after step {self.step} of {self.plan.total}; saved.",
                "Run the same command again to go on.",
            )
        message = "trained" if ended == "steps" else "time is up"
        self.progress.emit(
            "done",
            done=self.step,
            total=self.plan.total,
            unit="steps",
            message=message,
            metrics=self.last,
        )

    def _one_step(self) -> None:
        from dflash.optim import learning_rate

        count, deliveries, totals = self.config.micro_batches, [], []
        first = self.step * count
        for g in range(first + self.role.drafter, first + count, self.role.drafters):
            batch = self.plan.batches.micro_batch(g)
            delivery = self.feed.take(batch)
            rows = self.plan.batches.drafter_rows(batch, fixed=self.types.device.type == "cuda")
            sums = self.micro_step(g, self._scaled(delivery.states), rows.to(self.types.device))
            self.feed.release(g)
            deliveries.append(delivery)
            totals.append(sums.totals())
            self.tokens += batch.tokens * self.role.drafters
        total = self._sum_over_drafters(sum(totals[1:], totals[0]))
        rate = learning_rate(self.step, self.plan.total, self.config)
        report = self.optimiser.step(rate, divisor=max(float(total[1]), 1e-9))
        self.step += 1
        if self.role.leads:
            self._report(total, report, rate, deliveries)

    def _scaled(self, states: torch.Tensor) -> torch.Tensor:
        """Taps as fc reads them while training; the first micro-batch of all sets the scale."""
        if self.scale is None:
            import torch
            import torch.distributed as dist

            from dflash.feed import peer_errors
            from dflash.initial import fold_scale, measure_scale, pass_last_tap

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
        from dflash.losses import block_loss

        scale = self.plan.shape.input_embedding_scale
        embeds = self.ends.embed(rows.block_ids[None], scale)
        out = self.drafter(embeds, states[None], rows.layout, self.config.attention)
        head, labels, correction = self._head_for(g, rows)
        sums = block_loss(
            out[0].to(self.types.target),
            labels,
            rows.supervised,
            rows.slot,
            head,
            self.options,
            correction=correction,
        )
        sums.loss.backward()
        self.optimiser.collect()
        return sums

    def _head_for(self, g: int, rows: DrafterRows) -> tuple[Any, torch.Tensor, Any]:
        """The head to use, labels as its rows count them, and what to add to its logits."""
        from torch.nn import functional

        if self.sample is None:
            return self.ends.head, rows.labels, None
        drawn = self.sample.draw(g, rows.labels[rows.supervised])
        ids = drawn.ids.to(self.types.device)
        weight = self.ends.head_weight[ids]
        correction = drawn.correction.to(self.types.device)
        labels = drawn.place(rows.labels.cpu()).to(self.types.device)
        return (lambda h: functional.linear(h, weight)), labels, correction

    def _sum_over_drafters(self, totals: torch.Tensor) -> torch.Tensor:
        """Gradients and counts over all drafter ranks: one mean for the whole step."""
        if self.role.drafters == 1:
            return totals
        import torch
        import torch.distributed as dist

        from dflash.feed import peer_errors

        with peer_errors("another drafter rank"):
            dist.all_reduce(totals, group=self.group)
            grads = self.optimiser.gradients()
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat, group=self.group)
        parts = flat.split([grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))
        return totals

    def _asked_to_end(self, stop: StopRequest, elapsed: float) -> str:
        """`signal` or `time` when any drafter rank has one; the same answer on all of them."""
        minutes = self.config.minutes
        flags = [bool(stop), minutes is not None and elapsed >= minutes * 60]
        if self.role.drafters > 1:
            import torch
            import torch.distributed as dist

            votes = torch.tensor(flags, dtype=torch.long, device=self.types.device)
            dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.group)
            flags = [bool(v) for v in votes]
        if self.step == self.plan.total:
            return "steps"
        return "signal" if flags[0] else "time" if flags[1] else "steps"

    def _report(
        self, total: torch.Tensor, report: StepReport, rate: float, deliveries: list[Delivery]
    ) -> None:
        now = time.monotonic()
        seconds, self.mark = now - self.mark, now
        size = self.plan.shape.block_size
        loss, divisor, accepted, blocks = total[:4].tolist()
        right, seen = total[4 : 4 + size], total[4 + size :]
        accuracy = (right / seen.clamp_min(1))[1:].tolist()
        tokens = sum(len(d.states) for d in deliveries) * self.role.drafters
        self.last = {
            "loss": loss / max(divisor, 1e-9),
            "acceptance": 1 + accepted / max(blocks, 1),
            "slot_accuracy": accuracy,
            "lr": rate,
            "grad_norm": report.grad_norm,
            "tok_s": tokens / max(seconds, 1e-9),
            "step_s": seconds,
            "drafter_waited_s": sum(d.waited_s for d in deliveries),
            "target_waited_s": sum(d.target_waited_s for d in deliveries),
            "target_busy_s": sum(d.target_busy_s for d in deliveries),
        }
        if report.skipped:
            self.last["skipped"] = report.skipped
        for sink in (self.progress, self.metrics):
            sink.emit(
                "step", done=self.step, total=self.plan.total, unit="steps", metrics=self.last
            )

    def _save(self, elapsed: float, ended: str) -> None:
        if not self.role.leads:
            return
        import torch

        from dflash.checkpoint import provenance_of, save_checkpoint
        from dflash.initial import fold_scale

        assert self.scale is not None, "a step has set it"
        fold_scale(self.drafter, self.scale)  # the files hold plain weights
        state = {
            "step": self.step,
            "total": self.plan.total,
            "tokens": self.tokens,
            "elapsed_s": elapsed,
            "data": self.plan.fingerprint,
            "config": self.config.to_json(),
            "optimiser": self.optimiser.state_dict(),
            "rng": torch.get_rng_state(),
            "scale": self.scale.cpu(),
        }
        known = self.config.to_json()
        folder = save_checkpoint(
            self.out,
            self.step,
            self.drafter,
            state,
            provenance=provenance_of(known) | {"step": self.step, "total": self.plan.total},
            keep=self.config.keep,
        )
        fold_scale(self.drafter, 1 / self.scale)
        summary = {
            "checkpoint": str(folder),
            "step": self.step,
            "total": self.plan.total,
            "ended": ended,
            "tokens": self.tokens,
            "data": self.plan.fingerprint,
            "seconds": elapsed,
            "config": known,
            **{k: self.last.get(k) for k in ("loss", "acceptance", "slot_accuracy")},
        }
        write_json(self.out / SUMMARY, summary)


def main() -> int:
    """`python -m dflash.train RUN.json`: one rank, started by the launcher."""
    try:
        config = TrainConfig.from_json(read_json(Path(sys.argv[1]), "run's configuration"))
        return rank_main(config)
    except DflashError as error:
        sys.stderr.write(f"dflash train: {error.message}\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
