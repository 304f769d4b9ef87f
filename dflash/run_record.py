"""What a run leaves behind: events, metrics, curves, checkpoints, uploads and the summary.

Only the leading drafter rank has one that writes.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import curves, keys
from dflash.checkpoint import (
    BEST,
    NAME,
    PROVENANCE,
    latest_checkpoint,
    provenance_of,
    save_checkpoint,
)
from dflash.errors import DflashError
from dflash.files import read_json, write_json, write_text
from dflash.json_shape import misfit
from dflash.progress import Progress, parse_line
from dflash.resume import MEASURE
from dflash.run_plan import drafter_dtype
from dflash.summary import SUMMARY, known_summary, read_summary, was_sent
from dflash.upload import Uploader, options_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dflash.drafter import Drafter
    from dflash.optim import Optimiser
    from dflash.ranks import Role
    from dflash.run_plan import Plan
    from dflash.train_config import TrainConfig

METRICS = "metrics.jsonl"
DRAW_EVERY_S = 60.0
SCORED = {"config": dict, "heldout?": {"heldout_acceptance?": float}}


class RunRecord:
    """Everything a reader of the run's folder sees."""

    def __init__(self, config: TrainConfig, role: Role, made: Plan, *, step: int) -> None:
        self.config, self.plan, self.writes = config, made, role.leads
        self.out = Path(config.out)
        self.last: dict[str, Any] = {}
        self.scores: dict[str, Any] = {}
        self.uploader: Uploader | None = None
        self.uploaded: dict[str, Any] | None = None
        self._drawn = time.monotonic()
        nowhere = Progress("/dev/null")
        self.progress = Progress(echo=sys.stderr) if role.leads else nowhere
        self.metrics = Progress(self.out / METRICS) if role.leads else nowhere
        if not role.leads:
            return
        self.board = curves.Board(self.out, step)
        for note in (*made.notes, *curves.missing()):
            self.phase(note)
        if config.upload:
            self.uploader = Uploader(config.upload, self.phase, options_of(config))
            self._send_what_is_left(self.uploader)

    def _send_what_is_left(self, uploader: Uploader) -> None:
        """The newest checkpoint, when the run that made it ended before its upload did."""
        newest = latest_checkpoint(self.out)
        if newest is None or not (self.out / SUMMARY).is_file():
            return
        summary = known_summary(self.out, self.phase)
        if summary is None or not was_sent(summary, uploader.url, newest.name):
            self.phase(f"{newest.name} may not have been uploaded: it goes first")
            uploader.offer(newest)

    def begins(self, optimiser: Optimiser) -> None:
        """Every parameter group with its rate: one that trains slower than meant shows here."""
        for group in optimiser.adamw.param_groups:
            wanted = group is optimiser.adamw.param_groups[0]
            mine = [p for p in optimiser.params if (p.ndim > 1) == wanted]
            self.phase(
                f"{'matrices' if wanted else 'norms and biases'}: {len(mine)} tensors, "
                f"{sum(p.numel() for p in mine):,} weights, learning rate {group['lr']:g}, "
                f"weight decay {group['weight_decay']:g}"
            )

    def silence(self) -> None:
        """Of a rehearsal nothing is told."""
        self.progress = self.metrics = Progress("/dev/null")

    def phase(self, message: str) -> None:
        self.progress.emit("phase", message=message)

    def step(self, step: int, metrics: Mapping[str, Any]) -> None:
        self.last = dict(metrics)
        told = keys.told(refused=self.uploader.keys_ended) if self.uploader else ""
        shown = {**metrics, "keys": told} if told else metrics
        for sink, found in ((self.progress, shown), (self.metrics, metrics)):
            sink.emit("step", done=step, total=self.plan.total, unit="steps", metrics=found)
        if self.writes:
            self.board.add(step, metrics)

    def recall(self, step: int) -> None:
        """What an earlier run measured at its last step, as far as that is here."""
        if self.writes and (self.out / METRICS).is_file():
            for event in map(parse_line, (self.out / METRICS).read_bytes().splitlines()):
                if event is None or misfit(event, curves.EVENT):
                    continue
                if (event.get("kind"), event["done"]) == ("step", step):
                    self.last = event["metrics"]

    def validated(self, step: int, scores: Mapping[str, Any]) -> None:
        """Held-out scores of the weights after this step."""
        self.scores = dict(scores)
        for sink in (self.progress, self.metrics):
            sink.emit("phase", done=step, unit="steps", message="held-out", metrics=scores)
        if self.writes:
            self.board.add(step, scores)

    def save(
        self,
        drafter: Drafter,
        step: int,
        state: dict[str, Any],
        *,
        ended: str,
        elapsed: float,
        rates: Mapping[str, Any],
    ) -> None:
        """A checkpoint, `best` when it is that, and the summary; the upload begins."""
        known = self.config.to_json()
        held, best = self.scores, self._is_best(f"step-{step:06d}")
        self.scores = {}
        facts = {
            "step": step,
            "total": self.plan.total,
            "warmup": self.plan.warmup,
            "data": self.plan.fingerprint,
            "target": self.plan.target,
            "dtype": drafter_dtype(self.config),
            "heldout": held,
        }
        folder = save_checkpoint(
            self.out,
            step,
            drafter,
            state,
            provenance=provenance_of(known) | facts,
            keep=self.config.keep,
            held=(self.uploader.holding if self.uploader else set()) | {best},
        )
        if best:
            write_text(self.out / BEST, best + "\n")
        if self.uploader is not None:
            self.uploader.offer(folder)
        write_json(
            self.out / SUMMARY,
            {
                "checkpoint": str(folder),
                "best": str(self.out / best) if best else None,
                **facts,
                "ended": ended,
                "tokens": state["tokens"],
                "seconds": elapsed,
                "config": known,
                "rates": dict(rates),
                "upload": self.uploaded,
                **held,
                **{key: self.last.get(key) for key in ("loss", "acceptance", "slot_accuracy")},
            },
        )
        if ended != "running" or time.monotonic() - self._drawn > DRAW_EVERY_S:
            curves.draw(self.out / METRICS, self.out / curves.PICTURE)
            self._drawn = time.monotonic()

    def _is_best(self, name: str) -> str:
        """The name of the best checkpoint once this one is saved; empty when none was scored."""
        path = self.out / BEST
        before = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        before = before.strip() if NAME.fullmatch(before.strip()) else ""
        if not self.scores:
            return before
        if before and before != name:
            facts: dict[str, Any] = {}
            with contextlib.suppress(DflashError):  # gone or torn: that one is not the best
                facts = read_json(self.out / before / PROVENANCE, "checkpoint's provenance", SCORED)
            known = (facts.get("heldout") or {}).get("heldout_acceptance") or 0.0
            measure = facts.get("config", {})
            alike = all(measure.get(k) == getattr(self.config, k) for k in MEASURE)
            if alike and known >= self.scores["heldout_acceptance"]:
                return before
        return name

    def close(self, left: Callable[[], float | None]) -> None:
        """Wait for the upload, so long at most; what became of it goes into the summary."""
        if not self.writes:
            return
        self.board.close()
        if self.uploader is None:
            return
        waiting, seconds = ", ".join(sorted(self.uploader.holding)), left()
        if waiting and seconds is not None:
            self.phase(f"{waiting} is saved; its upload has {seconds:.0f} s until this run ends")
        self.uploaded = self.uploader.close(left)
        if self.uploaded["problem"]:
            self.phase(f"not uploaded: {self.uploaded['problem']}")
        summary = read_summary(self.out)
        write_json(self.out / SUMMARY, summary | {"upload": self.uploaded})
