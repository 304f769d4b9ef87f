"""The lines around the panes: how far, what next, what was said, the same by command, keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.style import Style
from rich.text import Text
from textual.widgets import Static

from runbook.tui import board_model as model
from runbook.tui import format as fmt
from runbook.tui.places import PLACES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime

    from textual import events
    from textual.timer import Timer

    from runbook.tui.describe import Looks
    from runbook.tui.keyfile import KeyTable
    from runbook.tui.keymap import Key
    from runbook.tui.voice import Said
    from runbook.views import View

GOOD_NEWS_S = 10.0
MOST_LINES = 4
"""Of a message; the style has it too."""
"""How long a line stays that asks nothing of anybody."""

_ORDER = (
    "done", "skipped", "serving", "active", "starting", "verifying", "draining", "gated", "stale",
    "attention", "unhealthy", "failed", "stopped", "ready", "blocked", "draft",
)  # fmt: skip


class Line(Static):
    """A bar that is drawn again only when it says something else."""

    GROWS = False
    """Whether it may take more rows or fewer: only then is the screen laid out anew."""
    said: Text | None = None

    def put(self, text: Text) -> None:
        """Show this."""
        if text != self.said or text.spans != self.said.spans:
            self.said = text
            self.update(text, layout=self.GROWS)


class Header(Line):
    """Title, counts, who drives, how old the facts are; below it a ribbon of all tasks."""

    _counted: tuple[object, dict[str, int]] = (None, {})

    def show(self, view: View, looks: Looks, *, driver: str, age: float | None) -> None:
        """Redraw from a view."""
        width = max(20, self.size.width or self.app.size.width)
        if self._counted[0] is not view.snapshot:
            self._counted = (view.snapshot, model.counts(view))
        counts = self._counted[1]
        lines = [_title(view, counts, looks, driver, age, width)]
        if self.size.height != 1:
            lines.append(_ribbon(counts, looks, width))
        self.put(Text("\n").join(lines))


def _title(
    view: View, counts: Mapping[str, int], looks: Looks, driver: str, age: float | None, width: int
) -> Text:
    inks = looks.inks
    right = Text()
    for state, count in _grouped(counts):
        right.append(f"{looks.glyphs.state(state)} ", inks.state(state))
        right.append(f"{count}  ", inks.text)
    alone = driver == "unattended"
    right.append(
        fmt.clip(driver, max(13, width // 4), end=looks.glyphs.ellipsis),
        inks.warn if alone else inks.muted,
    )
    if age is not None:
        old = age > 30
        right.append(
            f" {looks.glyphs.dot} facts {fmt.duration(age)} old", inks.warn if old else inks.muted
        )
    meta = view.snapshot.meta
    name = fmt.clean(meta.title or meta.name)
    left = Text(" ", end="")
    left.append(
        fmt.clip(name, max(8, width - right.cell_len - 3), end=looks.glyphs.ellipsis), inks.strong
    )
    gap = max(1, width - left.cell_len - right.cell_len - 1)
    return Text.assemble(left, " " * gap, right)


def _grouped(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Counts of what a glance wants: done, running, waiting for you, in trouble."""
    groups = (
        ("done", model.FINISHED),
        ("active", model.RUNNING),
        ("serving", frozenset({"serving"})),
        ("gated", model.WAITING),
        ("failed", model.TROUBLE - {"stopped"}),
        ("stopped", frozenset({"stopped"})),
        ("blocked", frozenset({"draft", "blocked", "ready"})),
    )
    sums = [(glyph, sum(counts.get(state, 0) for state in states)) for glyph, states in groups]
    return [(glyph, count) for glyph, count in sums if count]


def _ribbon(counts: Mapping[str, int], looks: Looks, width: int) -> Text:
    """All tasks as one line of colour, in the order of how settled they are."""
    total = sum(counts.values())
    line = Text(" ", end="")
    if not total:
        return line
    room, passed, drawn = width - 2, 0, 0
    for state in _ORDER:
        passed += counts.get(state, 0)
        cells = round(room * passed / total) - drawn
        drawn += cells
        settled = state not in ("ready", "blocked", "draft")
        on, off = ("#", "-") if looks.glyphs.ascii_only else ("━", "─")
        line.append(
            (on if settled else off) * cells,
            looks.inks.state(state) if settled else looks.inks.faint,
        )
    return line


class PlaceBar(Line):
    """Where one is and where one may go. A click is the same as the number."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._spans: list[tuple[int, int, str]] = []

    def show(self, here: str, looks: Looks, table: KeyTable, *, waiting: int) -> None:
        """Redraw; `waiting` is how many things want a person."""
        width = max(20, self.size.width or self.app.size.width)
        for edge, gap in ((1, 3), (1, 2), (1, 1), (0, 1)):
            line, spans = _places(here, looks, table, waiting, edge=edge, gap=gap)
            if line.cell_len - gap <= width:
                break
        self._spans = spans
        line.truncate(width)
        self.put(line)

    async def on_click(self, event: events.Click) -> None:
        """Go where the pointer is."""
        for start, end, place in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(f"place('{place}')")


def _places(
    here: str, looks: Looks, table: KeyTable, waiting: int, *, edge: int, gap: int
) -> tuple[Text, list[tuple[int, int, str]]]:
    inks = looks.inks
    line, spans = Text(" " * edge, no_wrap=True, end=""), []
    for place in PLACES:
        start = line.cell_len
        on = place.id == here
        key = table.of(f"place_{place.id}").shown
        ground = inks.cursor if on else Style()
        line.append(f"{key} ", inks.busy + ground)
        line.append(place.title, (inks.strong if on else inks.muted) + ground)
        if place.id == "attention" and waiting:
            line.append(f" {waiting}", inks.accent + Style(bold=True) + ground)
        spans.append((start, line.cell_len, place.id))
        line.append(" " * gap)
    return line, spans


class NextBar(Line):
    """The next safe action: the command first, then why."""

    def show(self, view: View, looks: Looks, *, key: str, finished: str = "") -> None:
        """Redraw from a view, with the key that does it; `finished` replaces it at the end."""
        inks, step = looks.inks, view.next
        width = max(20, self.size.width or self.app.size.width) - 2
        if finished:
            head = Text.assemble(
                (f" {looks.glyphs.ok} ", inks.ok),
                (
                    fmt.clip(finished, width - 3, end=looks.glyphs.ellipsis),
                    inks.ok + Style(bold=True),
                ),
            )
            self.put(Text("\n").join([head, fmt.text(f"   {step.reason}", inks.muted)]))
            return
        urgent = step.verb in ("approve", "bind", "supersede", "retry")
        ink = inks.accent if urgent else inks.busy
        verb = {"nothing": "Nothing to do", "wait": "Wait"}.get(step.verb, step.verb.capitalize())
        head = Text.assemble(
            (f" {looks.glyphs.arrow} ", ink),
            ("Next ", inks.muted),
            (f"[{key}] ", inks.busy + Style(bold=True)),
            (f"{verb}", ink + Style(bold=True)),
        )
        about = view.snapshot.by_id.get(step.task or "")
        named = about.role if step.verb == "bind" and about is not None else step.task
        if named:
            head.append(f" {fmt.clean(named)}", inks.strong)
        if step.command:
            head.append(f"   $ {fmt.clean(step.command)}", inks.text)
        if head.cell_len > width:
            head.truncate(width - 1)
            head.append(looks.glyphs.ellipsis)
        self.put(
            Text("\n").join(
                [
                    head,
                    Text(
                        "   "
                        + fmt.clip(fmt.clean(step.reason), width - 3, end=looks.glyphs.ellipsis),
                        style=inks.muted,
                    ),
                ]
            )
        )


class MessageBar(Line):
    """The last thing said. A problem stays until it was read and put away with escape."""

    GROWS = True
    said_last: Said | None = None
    _fade: Timer | None = None

    def say(self, said: Said, looks: Looks, *, faded: Callable[[Said], None]) -> None:
        """Show one line, and a second with the next step when there is one."""
        inks = looks.inks
        self.said_last = said
        glyph = looks.glyphs.bad if said.problem else looks.glyphs.dot
        ink = inks.bad if said.problem else inks.text
        text = Text(fmt.clean(said.text, most=400, end=looks.glyphs.ellipsis), ink)
        if said.hint:
            text.append(f"\n{fmt.clean(said.hint)}", inks.text)
        width = max(20, self.size.width or self.app.size.width) - 4
        lines = list(text.wrap(self.app.console, width))
        away = "   esc puts this away" if said.problem or said.stays else ""
        over = lines[-1].cell_len + len(away) > width
        if len(lines) > MOST_LINES or (len(lines) == MOST_LINES and over):
            del lines[MOST_LINES:]
            lines[-1].truncate(width - len(away) - 1)
            lines[-1].append(looks.glyphs.ellipsis)
        if lines[-1].cell_len + len(away) > width:
            lines.append(Text())
        lines[-1].append(away, inks.faint)
        line = Text(f" {glyph} ", inks.bad if said.problem else inks.muted)
        self.put(line.append_text(Text("\n   ").join(lines)))
        self.set_class(True, "-shown")
        self.set_class(said.problem, "-problem")
        if self._fade is not None:
            self._fade.stop()
        fades = not (said.problem or said.stays)
        self._fade = self.set_timer(GOOD_NEWS_S, lambda: faded(said)) if fades else None

    def clear(self) -> None:
        """Put it away."""
        self.said_last = None
        self.set_class(False, "-shown", "-problem")


class CommandBar(Line):
    """The command that does what the key does."""

    def show(self, command: str, looks: Looks, *, done: bool = False) -> None:
        """`done` marks what was just carried out."""
        mark = looks.glyphs.ok if done else "$"
        width = max(20, self.size.width or self.app.size.width)
        self.put(
            Text.assemble(
                (f" {mark} ", looks.inks.ok if done else looks.inks.faint),
                (
                    fmt.clip(fmt.clean(command), width - 4, end=looks.glyphs.ellipsis),
                    looks.inks.muted,
                ),
                no_wrap=True,
            )
        )


class KeyBar(Line):
    """The keys that work right now. A click is the same as the key."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._spans: list[tuple[int, int, str]] = []

    def show(self, keys: Sequence[Key], looks: Looks) -> None:
        """Redraw with these keys, as many as fit."""
        width = max(20, self.size.width or self.app.size.width)
        line = Text(" ", no_wrap=True, end="")
        self._spans = []
        gap = "   " if width >= 100 else "  "
        for key in _fitting(keys, width - 1, len(gap)):
            start = line.cell_len
            line.append(key.shown, looks.inks.busy + Style(bold=True))
            line.append(f" {key.label}", looks.inks.muted)
            self._spans.append((start, line.cell_len, key.action))
            line.append(gap)
        self.put(line)

    async def on_click(self, event: events.Click) -> None:
        """Do what the key under the pointer does."""
        for start, end, action in self._spans:
            if start <= event.x < end:
                await self.screen.run_action(action)


def _fitting(keys: Sequence[Key], width: int, gap: int) -> list[Key]:
    """The first ones that fit beside the key that tells all others, which is always there."""
    always = [key for key in keys if key.id == "help"]
    left = width - sum(_cells(key) + gap for key in always)
    shown: list[Key] = []
    for key in keys:
        if key not in always:
            if _cells(key) > left:
                break
            left -= _cells(key) + gap
        shown.append(key)
    return [*shown, *(key for key in always if key not in shown)]


def _cells(key: Key) -> int:
    return len(key.shown) + 1 + len(key.label)


def facts_age(view: View, now: datetime) -> float | None:
    """Seconds since the host heard of longest ago answered; None when nothing runs anywhere."""
    roles = {task.role for task in view.snapshot.tasks if task.state in model.OPEN}
    ages = [fmt.between(model.seen(view, role), now) for role in roles]
    return max((age for age in ages if age is not None), default=None)
