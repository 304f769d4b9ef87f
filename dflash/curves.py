"""Curves of a run for people: TensorBoard event files and one picture, where the packages are.

Both are optional (`pip install dflash-runbook[curves]`); without them a run says so and goes on.
"""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Any

from dflash.json_shape import misfit
from dflash.progress import parse_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

TENSORBOARD, PICTURE = "tensorboard", "curves.png"
POINTS = 2000
EVENT = {"done": float, "metrics": dict}
"""What has something to draw."""
PANELS = (
    ("loss", ("loss", "heldout_loss")),
    ("acceptance length", ("acceptance", "heldout_acceptance", "heldout_greedy_acceptance")),
    ("tok/s", ("tok_s",)),
    ("busy", ("target_busy", "drafter_busy")),
)


def missing() -> list[str]:
    """What cannot be made here, and why."""
    wanted = (("tensorboardX", "TensorBoard files"), ("matplotlib", PICTURE))
    return [
        f"no {what}: {package} is not installed"
        for package, what in wanted
        if importlib.util.find_spec(package) is None
    ]


class Board:
    """TensorBoard's event files of a run; nothing when its package is missing."""

    def __init__(self, out: Path, step: int) -> None:
        self._writer: Any = None
        if importlib.util.find_spec("tensorboardX") is None:
            return
        from tensorboardX import SummaryWriter

        # What a killed run wrote after its checkpoint is computed again, and not shown twice.
        purge = step + 1 if step else None
        self._writer = SummaryWriter(str(out / TENSORBOARD), purge_step=purge, flush_secs=30)

    def add(self, step: int, metrics: Mapping[str, Any]) -> None:
        if self._writer is None:
            return
        with contextlib.suppress(OSError):  # a full disk costs a curve, not a training
            for name, value in metrics.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, step)
                elif isinstance(value, list):
                    for slot, one in enumerate(value, start=1):
                        self._writer.add_scalar(f"{name}/{slot}", one, step)

    def close(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):
                self._writer.close()


def series(metrics: Path) -> dict[str, dict[int, float]]:
    """Every number of the file of metrics by name and step; of a step computed twice, the last."""
    found: dict[str, dict[int, float]] = {}
    with metrics.open("rb") as handle:
        for line in handle:
            event = parse_line(line)
            if event is None or misfit(event, EVENT):
                continue
            for name, value in event["metrics"].items():
                if isinstance(value, int | float):
                    found.setdefault(name, {})[int(event["done"])] = float(value)
    return found


def draw(metrics: Path, picture: Path) -> bool:
    """The picture of a run so far; False when it cannot be made here."""
    if importlib.util.find_spec("matplotlib") is None or not metrics.is_file():
        return False
    from matplotlib.figure import Figure

    known = series(metrics)
    figure = Figure(figsize=(11, 7), layout="constrained")
    for axes, (title, names) in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        axes.set_title(title)
        axes.grid(visible=True, alpha=0.3)
        for name in names:
            points = sorted(known.get(name, {}).items())
            thin = points[:: max(1, len(points) // POINTS)]
            if thin:
                marker = "o" if name.startswith("heldout") else ""
                axes.plot(*zip(*thin, strict=True), label=name, linewidth=1, marker=marker)
        if axes.lines:
            axes.legend(fontsize="small")
        axes.set_xlabel("step")
    aside = picture.with_name(f".{picture.name}")
    try:
        figure.savefig(aside, format="png", dpi=110)
        aside.replace(picture)
    except OSError:  # a full disk costs a picture, not a training
        aside.unlink(missing_ok=True)
        return False
    return True
