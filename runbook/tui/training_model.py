"""Which runs have curves, what is drawn of them, and the figures beside. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import naming
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from runbook.tui.describe import Looks
    from runbook.tui.metrics import Metrics
    from runbook.views import Checkpoint, View
    from state.model import Task

SPEEDS = ("tok_s", "tokens_per_s", "tok/s")
WAITS = (("drafter_waited_s", "drafter waited"), ("target_waited_s", "target waited"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One line of a plot."""

    label: str
    steps: Sequence[float]
    values: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot."""

    title: str
    curves: tuple[Curve, ...]


def candidates(view: View) -> list[Task]:
    """Tasks that train, the one that matters now first."""
    tasks = [t for t in view.snapshot.tasks if t.step == "train" and not t.removed]
    order = {"active": 0, "verifying": 1, "failed": 2, "done": 3}
    return sorted(tasks, key=lambda task: order.get(str(task.state), 4))


def plots(metrics: Metrics) -> list[Plot]:
    """Those for which there is anything to draw."""
    found = [
        _plot("loss", metrics, ["loss"]),
        _plot("accuracy by slot", metrics, _slots(metrics)),
        _plot("acceptance length", metrics, ["acceptance"]),
        _plot("tokens a second", metrics, [name for name in SPEEDS if name in metrics.curves][:1]),
        _plot("seconds waited in a step", metrics, [name for name, _ in WAITS]),
    ]
    return [plot for plot in found if plot.curves]


def _slots(metrics: Metrics) -> list[str]:
    """The first, the last and one between; sixteen lines on each other say nothing."""
    names = [name for name in metrics.curves if name.startswith("slot_accuracy[")]
    chosen = [names[0], names[len(names) // 2], names[-1]] if len(names) > 3 else names
    return list(dict.fromkeys(chosen))


def _plot(title: str, metrics: Metrics, names: Sequence[str]) -> Plot:
    curves = []
    for name in names:
        pairs = [
            (step, value)
            for step, value in zip(metrics.steps, metrics.curves.get(name, ()), strict=False)
            if value == value and step == step
        ]
        if len(pairs) > 1:
            label = name.removeprefix("slot_accuracy").strip("[]")
            label = f"slot {label}" if name.startswith("slot_") else dict(WAITS).get(name, "")
            curves.append(
                Curve(label=label, steps=[p[0] for p in pairs], values=[p[1] for p in pairs])
            )
    return Plot(title=title, curves=tuple(curves))


def thinned(curve: Curve, most: int) -> tuple[list[float], list[float]]:
    """At most so many points, each the mean of its neighbours: a plot has few columns."""
    count = len(curve.steps)
    if count <= most:
        return list(curve.steps), list(curve.values)
    steps, values = [], []
    for i in range(most):
        lo, hi = i * count // most, max(i * count // most + 1, (i + 1) * count // most)
        steps.append(sum(curve.steps[lo:hi]) / (hi - lo))
        values.append(sum(curve.values[lo:hi]) / (hi - lo))
    return steps, values


def figures(
    view: View,
    task: Task,
    metrics: Metrics,
    looks: Looks,
    *,
    width: int,
    found: Sequence[Checkpoint] = (),
    most: int = 3,
) -> Iterator[Text]:
    """The numbers that the plots do not show exactly, and at most so many checkpoints."""
    inks = looks.inks
    state = told_state(task)
    line = Text.assemble((f"{looks.glyphs.state(state)} {state}", inks.state(state)))
    latest = metrics.latest or {}
    share = model.fraction(latest)
    if share is not None:
        line.append(f"  step {fmt.number(latest.get('done'))} of ", inks.muted)
        line.append(f"{fmt.number(latest.get('total'))}", inks.muted)
        line.append(f"  {share:.0%}", inks.text)
    eta = metrics.eta()
    if eta is not None and task.state in model.OPEN and share is not None and share < 1:
        line.append(f"  {fmt.coarse(eta)} left", inks.text)
    yield line
    yield _numbers(latest.get("metrics"), looks, width)
    yield _waits(latest.get("metrics"), looks)
    yield gpu_line(view, task, looks, width=width)
    if found:
        yield from checkpoint_lines(found, looks, most=most)
    else:
        yield _expected(task, metrics, looks)


def _numbers(values: object, looks: Looks, width: int) -> Text:
    line = Text()
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, list) or (name.endswith("_s") and name != "tok_s"):
            continue
        one = Text.assemble(
            (f"{naming.words(name)} ", looks.inks.muted), (fmt.number(value), looks.inks.text)
        )
        if line.cell_len + one.cell_len + 3 > width:
            break
        line.append("   " if line else "").append_text(one)
    return line


def _waits(values: object, looks: Looks) -> Text:
    """Who waits for whom: the sign of a split that does not fit."""
    if not isinstance(values, dict):
        return Text()
    step = values.get("step_s")
    line = Text()
    for name, label in WAITS:
        waited = values.get(name)
        if isinstance(waited, int | float) and not isinstance(waited, bool):
            line.append("   " if line else "").append(f"{label} ", looks.inks.muted)
            line.append(f"{waited:.2f} s", looks.inks.text)
            if isinstance(step, int | float) and step > 0:
                line.append(f" of {step:.2f}", looks.inks.muted)
    return line


def _expected(task: Task, metrics: Metrics, looks: Looks) -> Text:
    """Before the host was asked: what is known of checkpoints from here."""
    known = task.out.get("checkpoint")
    if known:
        step = task.out.get("step")
        at = f" at step {fmt.number(step)}" if step is not None else ""
        return Text.assemble(
            ("checkpoint ", looks.inks.muted), (f"{fmt.clean(known)}{at}", looks.inks.text)
        )
    args = task.definition.get("with")
    every = args.get("save_every") if isinstance(args, dict) else None
    done = (metrics.latest or {}).get("done")
    if isinstance(every, int) and every > 0 and isinstance(done, int | float) and done == done:
        last = int(done) // every * every
        said = f"every {every} steps, the last at {last}" if last else f"the first at step {every}"
        return Text.assemble(("checkpoints ", looks.inks.muted), (said, looks.inks.text))
    return Text()


def checkpoint_lines(found: Sequence[Checkpoint], looks: Looks, *, most: int) -> Iterator[Text]:
    """The newest, and the best wherever it stands: step, size, path."""
    inks = looks.inks
    shown = list(found[-most:])
    best = next((one for one in found if one.best), None)
    if best is not None and best not in shown and most > 1:
        shown = [best, *shown[1:]]
    more = len(found) - len(shown)
    for one in reversed(shown):
        marks = " and ".join(word for word in ("latest", "best") if getattr(one, word))
        line = Text.assemble(
            ("checkpoint ", inks.muted),
            (f"step {one.step:,}  {fmt.size(one.size):>9}  ", inks.text),
            (f"{marks}  " if marks else "", inks.ok if one.best else inks.busy),
            (fmt.clean(one.path), inks.muted),
        )
        if one is shown[0] and more:
            line.append(f"  and {more} more", inks.muted)
        if best is not None and best not in shown:
            line.append(f", best at {best.step:,}", inks.ok)
        yield line


def gpu_line(view: View, task: Task, looks: Looks, *, width: int) -> Text:
    """Memory and load of the GPUs of its machine, as they were when it was last probed."""
    host = model.host_of(view, task)
    found = host.facts.get("gpus") if host is not None else None
    line = Text()
    for gpu in found if isinstance(found, list) else ():
        one = gpu if isinstance(gpu, dict) else {}
        used, total, load = (
            one.get(name) for name in ("used_bytes", "memory_bytes", "utilization_pct")
        )
        said = Text.assemble((f"gpu {fmt.clean(one.get('index', '?'))} ", looks.inks.muted))
        if isinstance(load, int | float):
            said.append(f"{load:.0f}% busy ", looks.inks.text)
        if isinstance(used, int | float) and isinstance(total, int | float):
            said.append(f"{fmt.size(used)} of {fmt.size(total)}", looks.inks.text)
        if line.cell_len + said.cell_len + 3 > width:
            break
        line.append("   " if line else "").append_text(said)
    return line


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """A range that is never empty."""
    low, high = min(values), max(values)
    if math.isclose(low, high):
        return low - 0.5, high + 0.5
    return low, high
