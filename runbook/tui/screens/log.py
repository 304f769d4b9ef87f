"""One log on the whole screen: two streams, every attempt, search, filter, the last failure."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual import on

from runbook.tui import format as fmt
from runbook.tui.keymap import bindings, of_place
from runbook.tui.logs import nothing_here, title_of
from runbook.tui.logsearch import FAILURE, Matches, pattern_of
from runbook.tui.screens.place import PlaceScreen
from runbook.tui.widgets.log_view import LogView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.widget import Widget

    from state.model import Attempt, Task


class LogScreen(PlaceScreen):
    """The file is read where it is; the search goes through it a piece at each tick."""

    PLACE = "log"
    FILTER = "search: the next lines with these letters; enter, then n and N, & shows only them"
    LABELS: ClassVar[Mapping[str, str]] = {
        **PlaceScreen.LABELS, "filter": "Search", "trouble": "Failure",
    }  # fmt: skip
    BINDINGS: ClassVar[list[BindingType]] = [*bindings(of_place("log"))]
    AUTO_FOCUS = "#log"

    def __init__(self) -> None:
        super().__init__()
        self.log_view = LogView(id="log")
        self.stream: str | None = None
        self.attempt = ""
        """The id of an older attempt; empty for the newest."""
        self._shown: str | None = None
        self._jump = False
        """A search that goes to its last match as soon as one is found."""
        self._failures: Matches | None = None

    def body(self) -> ComposeResult:
        yield self.log_view

    @property
    def output_of(self) -> Task | None:
        return self.current_task

    def panes(self) -> Iterable[Widget]:
        return (self.log_view,)

    def own_keys(self) -> list[str]:
        found = ["match_next", "matching"] if self.log_view.matches is not None else []
        return ["follow", "stream", "filter", *found, "trouble", "copy_output", "back"]

    def suggested(self) -> str:
        task = self.current_task
        if task is None:
            return "runbook logs TASK"
        stream, _ = self._where()
        err = " --err" if stream == "err" else ""
        if (old := self._older()) is not None:
            return f"runbook logs {quote(task.id)} --attempt {old.number}{err}"
        return f"runbook logs {quote(task.id)}{err}{' -f' if self.log_view.follow else ''}"

    def opened(self) -> None:
        task = self.current_task
        if task is not None and task.id != self._shown:
            self._shown, self.stream, self.attempt = task.id, None, ""
            self.forget_search()
            self.draw()
        self.log_view.focus()

    def _attempts(self) -> tuple[Attempt, ...]:
        task = self.current_task
        return self.home.view.snapshot.attempts_of(task.id) if task is not None else ()

    def _older(self) -> Attempt | None:
        """The chosen attempt, if another came after it."""
        return next((one for one in self._attempts()[:-1] if one.id == self.attempt), None)

    def _where(self) -> tuple[str, object]:
        task = self.current_task
        if task is None:
            return "out", None
        return self.home.streams.choose(self.home.view, task.id, self.stream, attempt=self.attempt)

    def draw_body(self) -> None:
        """The file may be another one by now: a retry writes a new log."""
        task, looks = self.current_task, self.home.looks
        if task is None:
            empty = "No task is chosen: 1 goes to the board, enter or 3 comes back with its log"
            self.log_view.show(None, looks, placeholder=empty)
            self.log_view.entitle(Text("Log"))
            return
        stream, path = self._where()
        before = self.log_view.file.path
        nothing = nothing_here(self.home.view, task, self.attempt, problem=self._problem())
        self.log_view.show(path, looks, placeholder=nothing)  # type: ignore[arg-type]
        if path != before:
            self._failures = None
        self._retitle(stream)

    def _problem(self) -> str:
        """Why the newest output may not be here; an older attempt writes nothing any more."""
        task = self.current_task
        if task is None or self._older() is not None:
            return ""
        return self.home.fetching.problem(self.home.view, task)

    def _retitle(self, stream: str) -> None:
        task, looks = self.current_task, self.home.looks
        attempts = self._attempts()
        which = self._older() or (attempts[-1] if attempts else None)
        title = Text.assemble(
            (fmt.clean(task.id) if task is not None else "", looks.inks.strong), "  "
        )
        if which is not None and len(attempts) > 1:
            where = f" on {fmt.clean(which.host)}" if which.host else ""
            count = f"attempt {which.number} of {len(attempts)}{where}"
            title.append(f"{count}  ", looks.inks.muted)
        title.append_text(title_of(self.log_view, stream, looks, problem=self._problem()))
        title.append_text(self._search_title())
        self.log_view.entitle(title)

    def _search_title(self) -> Text:
        looks, view = self.home.looks, self.log_view
        out = Text()
        if view.matches is not None:
            count = len(view.matches.lines)
            more = "" if view.matches.complete else " so far"
            on = view.found is not None and view.matches.has(view.found)
            at = f"{view.matches.rank(view.found or 0)} of " if on else ""
            out.append(f" {looks.glyphs.dot} {at}{count:,} matching{more}", looks.inks.accent)
        if view.only is not None:
            out.append(f" {looks.glyphs.dot} only those", looks.inks.warn)
        return out

    def tick(self) -> None:
        """The file grows, the search goes on."""
        moved = self.log_view.poll()
        failures = self._failures
        if failures is not None and not failures.complete:
            moved = failures.poll() or moved
        if self._jump:
            self._try_jump()
        if moved:
            self._retitle(self._where()[0])

    # --- search -------------------------------------------------------------------------------

    def narrowed(self) -> None:
        """Search as one types."""
        view = self.log_view
        view.only = None
        view.matches = Matches(view.file, pattern_of(self.needle)) if self.needle else None
        if view.matches is not None:
            view.matches.poll()
        view.fit()
        self.draw()

    def filter_kept(self) -> None:
        """Enter goes to the nearest match: the last one while the end is followed."""
        if not self.needle:
            self.forget_search()
        elif self.log_view.follow:
            self._jump = True
            self._try_jump()
        else:
            self.action_match(1)

    def _try_jump(self) -> None:
        """Once all is looked through, go to the last match."""
        wanted = self.log_view.matches
        if wanted is None or not wanted.complete:
            return
        self._jump = False
        if wanted.lines:
            self._go(wanted.lines[-1])
        else:
            self.home.voice.tell(f"Nothing here matches {self.needle}.")

    def _go(self, line: int) -> None:
        self.log_view.go_to_line(line)
        self._retitle(self._where()[0])

    def forget_search(self) -> None:
        """No search, no filter."""
        view = self.log_view
        view.matches = view.only = view.found = None
        self._jump = False
        self.filter.value = ""
        self.show_filter(False)
        view.fit()

    def action_match(self, step: int) -> None:
        matches = self.log_view.matches
        if matches is None:
            self.home.voice.tell("Nothing is searched for; / begins.")
            return
        self._go_on(matches, step)

    def _go_on(self, matches: Matches, step: int) -> None:
        found = self.log_view.found
        here = found if found is not None else self.log_view.top_line() - 1
        line = matches.after(here) if step > 0 else matches.before(here)
        if line is None and matches.lines:
            line = matches.lines[0 if step > 0 else -1]
            self.home.voice.tell("From the top again." if step > 0 else "From the end again.")
        if line is not None:
            self._go(line)
        elif matches.complete:
            self.home.voice.tell("Nothing here matches.")
        else:
            self.home.voice.tell("Nothing yet; still looking.")

    def action_matching(self) -> None:
        view = self.log_view
        if view.matches is None:
            self.home.voice.tell("Nothing is searched for; / begins.")
            return
        view.only = None if view.only is not None else view.matches
        view.fit()
        self._retitle(self._where()[0])

    def action_trouble(self) -> None:
        """To the last line that looks like a failure; again: the one before."""
        view = self.log_view
        if self._failures is None or self._failures.file is not view.file:
            self._failures = Matches(view.file, FAILURE)
        self._failures.poll(1 << 26)
        view.only = None
        found = view.found if view.found is not None else view.file.line_count
        line = self._failures.before(found)
        if line is None and self._failures.lines:
            line = self._failures.lines[-1]
        if line is not None:
            self._go(line)
        elif self._failures.complete:
            other = self.home.table.of("stream").shown
            self.home.voice.tell(f"No line here looks like a failure; {other}: the other stream.")
        else:
            self.home.voice.tell("Nothing yet; still looking. Press it again.")

    # --- keys ---------------------------------------------------------------------------------

    @on(LogView.FollowChanged)
    def name_log(self) -> None:
        """The title says whether the end is followed."""
        self.draw()

    def action_sideways(self, step: int) -> None:
        self.log_view.pan(step)

    def action_follow(self) -> None:
        self.log_view.set_follow(not self.log_view.follow)

    def action_stream(self) -> None:
        self.stream = "out" if self._where()[0] == "err" else "err"
        self.draw()

    def action_step(self, step: int) -> None:
        ids = [attempt.id for attempt in self._attempts()]
        if not ids:
            return
        at = ids.index(self.attempt) if self.attempt in ids else len(ids) - 1
        if not 0 <= at + step < len(ids):
            which = "earlier" if step < 0 else "later"
            self.home.voice.tell(f"There is no {which} attempt.")
            return
        chosen = ids[at + step]
        self.attempt = "" if chosen == ids[-1] else chosen
        self.stream = None
        self.forget_search()
        self.draw()

    def action_copy_output(self) -> None:
        self.home.voice.copy_lines(self.log_view)

    def action_back(self) -> None:
        """A message, then the search, then the place."""
        if self.home.voice.hush():
            return
        if self.needle or self.log_view.matches is not None or self.filter.display:
            self.forget_search()
            self.log_view.focus()
            self.draw()
            return
        self.home.ways.go_back()


SCREEN = LogScreen
