"""What the threads told: each fact changes what is shown, or is said to the person."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from runbook.engine.events import Info, Problem, Progressed
from runbook.tui import format as fmt
from runbook.tui import parting
from runbook.tui.bridge import Broke, Carried, Looked, PassphraseWanted, RunEnded, Seen, Told
from runbook.tui.dialogs import PassphraseScreen
from runbook.views import Live, RunResult, View

if TYPE_CHECKING:
    from runbook.tui.app import RunbookApp


class Ears:
    """Keeps the newest view, and how the last run ended."""

    def __init__(self, app: RunbookApp, view: View) -> None:
        self._app = app
        self.view = view
        self.result: RunResult | None = None
        self._run_seconds: float | None = None
        self._progress: dict[str, Live] = {}

    def hear(self, fact: Told) -> None:
        """One fact."""
        voice = self._app.voice
        match fact:
            case Seen():
                self.take_view(fact.view)
            case Progressed():
                self._keep_progress(fact)
            case Info():
                voice.news(fact.text)
            case Problem():
                voice.tell(fact.text, hint=fact.hint, problem=True, about="run")
            case Broke():
                about = "run" if fact.source == "engine" else ""
                voice.tell(fact.text, hint=fact.hint, problem=True, about=about)
                if fact.otherwise is not None:
                    fact.otherwise(fact)
            case Carried():
                self._app.place.said(fact.command, pending=False)
                voice.hush(about="run")
                if fact.then is not None:
                    fact.then(fact.answer)
            case Looked():
                fact.then(fact.answer)
            case RunEnded():
                self._run_seconds, self.result = fact.seconds, fact.result
                self._say_end(fact.result)
            case PassphraseWanted():
                screen = PassphraseScreen(fmt.clean(fact.path), again=fact.again)
                self._app.push_screen(screen, fact.answer.put)
            case _:
                pass

    def take_view(self, view: View) -> None:
        """What the eyes read, with the newer progress that the engine told."""
        running = set(parting.open_jobs(view))
        self._progress = {name: live for name, live in self._progress.items() if name in running}
        self.view = replace(view, live={**view.live, **self._progress})
        if self.finished_text():
            self._app.voice.hush(about="run")

    def _keep_progress(self, fact: Progressed) -> None:
        known = self.view.live.get(fact.task)
        attempt = self.view.snapshot.latest_attempt(fact.task)
        self._progress[fact.task] = Live(
            attempt=attempt.id if attempt is not None else "",
            progress=fact.progress,
            out_size=known.out_size if known is not None else 0,
            err_size=known.err_size if known is not None else 0,
            beat=known.beat if known is not None else 0,
            seen_at=self._app.now().isoformat(),
        )

    def _say_end(self, result: RunResult) -> None:
        said, trouble = parting.ended(result)
        if said:
            hint = self.view.next.command if trouble else ""
            self._app.voice.tell(said, problem=trouble, hint=hint, about="run")

    def finished_text(self) -> str:
        """What the top line says when nothing is left to do."""
        return parting.finished(self.view, self.result, self._run_seconds)
