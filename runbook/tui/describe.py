"""One task, described: what the detail pane shows. Pure; all text passes through `format`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from runbook.reasons import found_instead, link_word, stop_pending
from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui import naming
from state.telling import told_state

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from runbook.tui.glyphs import Glyphs
    from runbook.tui.inks import Inks
    from runbook.tui.metrics import Metrics
    from runbook.views import View
    from state.model import Artifact, Attempt, CheckRun, Task

_VERDICTS = {"pass": "holds", "fail": "does not hold", "unknown": "could not be asked"}
MOST_ATTEMPTS = 4
MOST_OUT = 12
TIGHT = 56
"""Narrower than this, air is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How things are drawn: characters and colours."""

    glyphs: Glyphs
    inks: Inks


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is described, with what is known of it besides the graph."""

    view: View
    task: Task
    now: datetime
    metrics: Metrics | None = None
    plan: Sequence[str] = ()
    full: bool = False
    """Everything, on a page of its own; else what fits beside the list."""


def describe(subject: Subject, looks: Looks, *, width: int) -> RenderableType:
    """The detail of a task as one renderable of at most `width` cells."""
    parts: list[RenderableType] = [_headline(subject, looks)]
    parts.extend(part for part in (_found(subject, looks), _why(subject, looks)) if part)
    parts.extend(_progress(subject, looks, width))
    grid = Table.grid(padding=(0, 2, 0, 0), expand=False)
    grid.add_column(width=9 if subject.full else 8, no_wrap=True)
    grid.add_column(overflow="fold")
    for label, lines in _sections(subject, looks):
        if subject.full and grid.row_count:
            grid.add_row()
        for index, line in enumerate(lines):
            grid.add_row(Text(label if index == 0 else "", style=looks.inks.muted), line)
    if grid.row_count:
        parts.append(Padding(grid, (1, 0, 0, 0)))
    return Group(*parts)


def _headline(subject: Subject, looks: Looks) -> Text:
    task, view, inks = subject.task, subject.view, looks.inks
    state = told_state(task)
    line = Text()
    line.append(f"{looks.glyphs.state(state)} {state}", inks.state(state) + Style(bold=True))
    seconds = model.took(view.snapshot.latest_attempt(task.id), subject.now)
    if task.state in model.OPEN and seconds is not None:
        line.append(f"  for {fmt.duration(seconds)}", inks.text)
    elif task.state == "done" and seconds is not None:
        line.append(f"  in {fmt.duration(seconds)}", inks.text)
    age = fmt.between(task.since, subject.now)
    if task.state not in model.OPEN and task.state not in ("draft", "blocked") and age is not None:
        line.append(f"  {looks.glyphs.dot} {fmt.duration(age)} ago", inks.muted)
    host = model.host_of(view, task)
    if host is not None and host.unreachable_since and task.state in model.OPEN:
        gone = fmt.duration(fmt.between(host.unreachable_since, subject.now))
        word = link_word(view.snapshot, host.role)
        line.append(f"  {looks.glyphs.dot} {word} for {gone}: it may well go on", inks.warn)
    return line


def _found(subject: Subject, looks: Looks) -> Text | None:
    """What its machine showed or said in the place of an answer."""
    host = model.host_of(subject.view, subject.task)
    if host is None or not host.unreachable_since or subject.task.state not in model.OPEN:
        return None
    found = found_instead(subject.view.snapshot, host.role)
    return fmt.text(f"{host.role}: {found}", looks.inks.warn) if found else None


def _why(subject: Subject, looks: Looks) -> Text | None:
    """Why it stands where it stands."""
    why = subject.task.reason or stop_pending(subject.view.snapshot, subject.task)
    if not why:
        return None
    bad = told_state(subject.task) in model.TROUBLE - {"stopped"}
    ink = looks.inks.bad if bad else looks.inks.text
    return fmt.text(why, ink)


def _progress(subject: Subject, looks: Looks, width: int) -> Iterator[RenderableType]:
    metrics = subject.metrics
    found = model.progress_of(subject.view, subject.task.id)
    if found is None and metrics is not None and subject.task.state in model.OPEN:
        found = metrics.latest
    tight = width < TIGHT
    if found is not None and subject.task.state in model.OPEN:
        if not tight:
            yield Text()
        share = model.fraction(found)
        if share is not None:
            yield _bar(share, found, metrics, looks, width)
        if found.get("message"):
            yield fmt.text(found["message"], looks.inks.muted)
    shown = found if found is not None else metrics.latest if metrics is not None else None
    values = shown.get("metrics") if shown is not None else None
    if isinstance(values, dict) and values:
        yield _figures(values, looks, width)
    if metrics is not None and len(metrics.loss) > 1:
        if not tight:
            yield Text()
        yield _curve(metrics.loss, looks, width, height=3 if tight else 5)


def _bar(
    share: float,
    found: object,
    metrics: Metrics | None,
    looks: Looks,
    width: int,
) -> Text:
    assert isinstance(found, dict)
    done, total = fmt.number(found.get("done")), fmt.number(found.get("total"))
    unit = fmt.clean(found.get("unit") or "")
    tail = f" {share:>4.0%}"
    eta = metrics.eta() if metrics is not None else None
    for more in (
        f"  {done}/{total} {unit}".rstrip(),
        f"  {fmt.coarse(eta)} left" if eta is not None and share < 1 else "",
    ):
        if len(tail) + len(more) + 8 <= width:
            tail += more
    on, off = fmt.bar(share, max(8, min(40, width - len(tail))), ascii_only=looks.glyphs.ascii_only)
    return Text.assemble((on, looks.inks.busy), (off, looks.inks.faint), (tail, looks.inks.text))


def _figures(values: Mapping[str, Any], looks: Looks, width: int) -> Text:
    """As many metrics as fit on one line."""
    line = Text()
    for name, value in values.items():
        one = Text.assemble(
            (f"{naming.words(name)} ", looks.inks.muted), (fmt.number(value), looks.inks.text)
        )
        gap = "   " if line else ""
        if line.cell_len + len(gap) + one.cell_len > width:
            break
        line.append(gap).append_text(one)
    return line


def _curve(loss: Sequence[float], looks: Looks, width: int, *, height: int) -> Text:
    """The loss over the run so far, its range at the left edge."""
    high, low = f"{max(loss):.2f}", f"{min(loss):.2f}"
    edge = max(len(high), len(low), 4)
    steep = min(loss) > 0 and max(loss) > 3 * min(loss)
    lines = fmt.chart(
        [math.log(value) for value in loss] if steep else loss,
        max(10, min(64, width - edge - 3)),
        height,
        ascii_only=looks.glyphs.ascii_only,
    )
    labels = [high, *[""] * (height - 2), low]
    labels[1] = "loss"
    if steep and height > 3:
        labels[2] = "log"
    side = "|" if looks.glyphs.ascii_only else "│"
    drawn = Text()
    for index, (label, line) in enumerate(zip(labels, lines, strict=True)):
        drawn.append(f"{label:>{edge}} ", looks.inks.muted)
        drawn.append(side, looks.inks.faint)
        drawn.append(line + ("\n" if index < height - 1 else ""), looks.inks.accent)
    return drawn


def _sections(subject: Subject, looks: Looks) -> Iterator[tuple[str, list[Text]]]:
    task, inks, full = subject.task, looks.inks, subject.full
    snapshot = subject.view.snapshot
    yield "step", [_where(subject, looks)]
    if task.needs:
        yield "needs", [_edges([(n.task, n.condition) for n in task.needs], subject, looks)]
    if full:
        later = [
            (other.id, need.condition)
            for other in snapshot.tasks
            for need in other.needs
            if need.task == task.id and not other.removed
        ]
        if later:
            yield "needed by", [_edges(later, subject, looks)]
        if task.resources:
            yield "holds", [fmt.text(", ".join(task.resources), inks.text)]
    if subject.plan:
        yield "does", [fmt.text(line, inks.text if full else inks.muted) for line in subject.plan]
    checks = [_check(check, subject, looks) for check in snapshot.checks_of(task.id)]
    if checks:
        yield "checks", checks
    attempts = snapshot.attempts_of(task.id)[::-1]
    if attempts:
        shown = attempts if full else attempts[:MOST_ATTEMPTS]
        lines = [line for one in shown for line in _attempt_lines(one, subject, looks)]
        if len(attempts) > len(shown):
            lines.append(Text(f"and {len(attempts) - MOST_ATTEMPTS} before", style=inks.muted))
        yield "attempts", lines
    if task.out:
        most = None if full else MOST_OUT
        yield "out", [_pair(key, value, looks) for key, value in list(task.out.items())[:most]]
    artifacts = [one for one in snapshot.artifacts if one.task == task.id]
    if full and artifacts:
        yield "artifacts", [_artifact(one, looks) for one in artifacts]
    notes = [note for note in snapshot.notes if note.task == task.id]
    if notes:
        yield (
            "notes",
            [
                fmt.text(f"{note.actor}: {note.text}", inks.text)
                for note in (notes if full else notes[-3:])
            ],
        )
    if full and task.definition:
        yield "defined", list(_definition(task.definition, looks))


def _pair(key: object, value: object, looks: Looks) -> Text:
    return Text.assemble(
        (f"{naming.words(key)}  ", looks.inks.muted), (naming.quantity(key, value), looks.inks.text)
    )


def _artifact(one: Artifact, looks: Looks) -> Text:
    return Text.assemble(
        (fmt.clean(one.uri), looks.inks.text),
        (f"  {fmt.size(one.size)}  sha256 {one.sha256[:16]}", looks.inks.muted),
    )


def _definition(value: Mapping[str, Any], looks: Looks, indent: int = 0) -> Iterator[Text]:
    """The definition as a runbook file would say it."""
    for key, found in value.items():
        if found in (None, [], {}, ""):
            continue  # what is not set needs no line
        own = indent == 0 or key in naming.OF_A_TASK
        word = naming.words(key) if own else fmt.clean(key)  # below `with`: as the file has it
        head = (f"{' ' * indent}{word}: ", looks.inks.muted)
        if isinstance(found, dict) and found:
            yield Text.assemble(head)
            yield from _definition(found, looks, indent + 2)
        elif isinstance(found, str) and "\n" in found.strip():
            yield Text.assemble(head)
            for line in found.splitlines():
                yield fmt.text(" " * (indent + 2) + line, looks.inks.text)
        elif isinstance(found, list) and any(isinstance(one, dict) for one in found):
            yield Text.assemble(head)
            for one in found:
                yield Text.assemble(
                    (f"{' ' * indent}  - ", looks.inks.muted), (_flow(one), looks.inks.text)
                )
        elif key == "needs" and indent == 0:
            names = (one[0] if isinstance(one, list) and one else one for one in found)
            yield Text.assemble(head, (", ".join(map(fmt.clean, names)), looks.inks.text))
        else:
            yield Text.assemble(head, (fmt.value(found), looks.inks.text))


def _flow(value: Any, *, inner: bool = False) -> str:
    """A value on one line, as YAML has it."""
    if isinstance(value, dict):
        said = ", ".join(
            f"{fmt.clean(key)}: {_flow(one, inner=True)}" for key, one in value.items()
        )
        return f"{{{said}}}" if inner else said
    if isinstance(value, list):
        return f"[{', '.join(_flow(one, inner=True) for one in value)}]"
    return fmt.value(value)


def _where(subject: Subject, looks: Looks) -> Text:
    task, inks = subject.task, looks.inks
    line = Text.assemble((fmt.clean(task.step), inks.text))
    host = model.host_of(subject.view, task)
    if task.role is None:
        return line
    line.append(" on ", inks.muted)
    line.append(fmt.clean(task.role), inks.text)
    if host is None:
        line.append("  not bound to a machine yet", inks.warn)
        return line
    where = "this machine" if host.kind == "local" else fmt.clean(host.place)
    line.append(f"  {where}", inks.muted)
    seen = fmt.between(model.seen(subject.view, task.role), subject.now)
    if seen is not None:
        line.append(f", seen {fmt.duration(seen)} ago", inks.muted)
    return line


def _edges(edges: Sequence[tuple[str, str]], subject: Subject, looks: Looks) -> Text:
    line = Text()
    for name, condition in edges:
        other = subject.view.snapshot.by_id.get(name)
        state = told_state(other) if other is not None else "blocked"
        line.append(f"{looks.glyphs.state(state)} ", looks.inks.state(state))
        line.append(fmt.clean(name), looks.inks.text)
        line.append(" (however it ends)   " if condition == "any" else "   ", looks.inks.muted)
    line.rstrip()
    return line


def _check(check: CheckRun, subject: Subject, looks: Looks) -> Text:
    glyphs, inks = looks.glyphs, looks.inks
    glyph, ink = {
        "pass": (glyphs.ok, inks.ok),
        "fail": (glyphs.bad, inks.bad),
    }.get(check.verdict, (glyphs.unknown, inks.warn))
    purpose = "" if check.purpose == "done" else f"{check.purpose}: "
    line = Text.assemble(
        (f"{glyph} ", ink),
        (f"{purpose}{naming.words(check.name)}", inks.text),
        (f"  {_VERDICTS.get(check.verdict, check.verdict)}", ink),
    )
    found = ", ".join(naming.pair(k, v) for k, v in check.evidence.items())
    if found:
        line.append(f"  {found}", inks.muted if check.verdict == "pass" else inks.text)
    age = fmt.between(check.at, subject.now)
    if age is not None:
        line.append(f"  {fmt.duration(age)} ago", inks.faint)
    return line


def _attempt_lines(attempt: Attempt, subject: Subject, looks: Looks) -> Iterator[Text]:
    yield _attempt(attempt, subject, looks)
    if not subject.full:
        return
    inks = looks.inks
    does = attempt.detail.get("summary") or ()
    for line in does if not set(does) <= set(subject.plan) else ():  # that stands above
        yield fmt.text(f"   {line}", inks.muted)
    for key, value in attempt.evidence.items():
        if value not in ("", None, [], {}):
            yield Text.assemble(
                (f"   {naming.words(key)}  ", inks.muted),
                (naming.quantity(key, value), inks.text),
            )


def _attempt(attempt: Attempt, subject: Subject, looks: Looks) -> Text:
    inks = looks.inks
    ended = str(attempt.cls) if attempt.cls is not None else str(attempt.state)
    good = ended in ("ok", "verified")
    running = attempt.ended_at is None and attempt.cls is None
    stopped = ended == "stopped"
    ink = inks.ok if good else inks.busy if running else inks.text if stopped else inks.bad
    line = Text.assemble((f"#{attempt.number} ", inks.muted), (ended.replace("_", " "), ink))
    for name, code in (("exit", attempt.exit_code), ("signal", attempt.signal)):
        if code is None or (name == "exit" and good):
            continue
        line.append(*((f" {code}", ink) if ended == name else (f"  {name} {code}", inks.text)))
    seconds = model.took(attempt, subject.now)
    if seconds is not None:
        line.append(f"  {fmt.duration(seconds)}", inks.text)
    line.append(f"  {fmt.clean(attempt.host)}", inks.muted)
    started = fmt.parse_time(attempt.started_at or attempt.created_at)
    if started is not None:
        line.append(f"  {started:%d %b %H:%M} UTC", inks.faint)
    return line
