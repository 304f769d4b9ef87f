"""`runbook logs`: a task's output. The local copy while an engine keeps it, else fetched anew."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

import click

from runbook import report
from runbook.cli.common import Number, answer, json_option
from runbook.errors import Exit
from runbook.reader import Reader, numbered
from state import AttemptState, TaskState
from state.telling import told_state

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.service import Service
    from runbook.verbs.logs import Copied
    from state import Snapshot

ERR_LINES = 15
STEP_S = (0.5, 1.0)
"""Pause between two looks: at the copy that an engine keeps, and at the host itself."""
OVER = frozenset(
    {TaskState.DONE, TaskState.FAILED, TaskState.SKIPPED, TaskState.STALE, TaskState.ATTENTION}
)
SILENT_S = 60.0
"""How long a host that answered before is asked again until we leave."""


@click.command("logs")
@click.argument("task")
@click.option("-f", "--follow", is_flag=True, help="Keep printing while the task runs.")
@click.option("--err", "stream", flag_value="err", help="Only the error stream.")
@click.option("--out", "stream", flag_value="out", help="Only the output.")
@click.option(
    "-n",
    "--lines",
    type=Number(min=0),
    default=40,
    show_default=True,
    help="Last lines to print; 0 for all.",
)
@click.option("--attempt", "number", type=Number(min=1), help="Which one. Default: the newest.")
@json_option
@click.pass_obj
def logs_command(
    workspace: Path,
    task: str,
    follow: bool,
    stream: str | None,
    lines: int,
    number: int | None,
    as_json: bool,
) -> None:
    """Print a task's output and the end of its errors, fetched where nobody else copies them.

    Example: runbook logs train -f
    """
    if follow and as_json:
        raise click.UsageError("--follow or --json, not both.")
    if follow and number is not None:
        raise click.UsageError("--follow or --attempt, not both: the newest one alone writes.")
    with Reader.open(workspace) as reader, Source(reader, task, number) as source:
        if follow:
            sys.exit(_follow(source, stream or "out", lines))
        copied = source.refresh()
        older = source.older(copied) if copied is not None and copied.problem else None
        streams = {}
        for name in (stream,) if stream else ("out", "err"):
            path = source.path(name)
            if path is not None:
                shown = lines if stream or name == "out" else ERR_LINES
                streams[name] = _tail(_end(path, shown), shown)
        snapshot = reader.snapshot()
        attempt = numbered(snapshot, task, number)
        why = attempt.evidence.get("diagnosis") if attempt else None
        if as_json:
            data = {"task": task, "attempt": attempt.id if attempt else None, "streams": streams}
            when = source.copied_at()
            known = {
                "diagnosis": why,
                "problem": copied.problem if copied else "",
                "copied_at": when.isoformat(timespec="seconds") if when else None,
            }
            answer("logs", snapshot.revision, {**data, **known})
            sys.exit(Exit.UNKNOWN if older and not any(streams.values()) else Exit.OK)
    for name, text in streams.items():
        if text and name == "err" and not stream:
            report.line("--- errors (--err for all of them) ---")
        if text:
            report.line(text)
    if why and not stream:
        report.line("--- what ended it ---")
        report.line(f"{report.clean(why['cause'])}. Next: {report.clean(why['next'])}.")
    if older:
        report.error(*older)
        sys.exit(Exit.OK if any(streams.values()) else Exit.UNKNOWN)
    if not any(streams.values()):
        what = {"out": " to its output", "err": " to its error stream"}.get(stream or "", "")
        report.error(*_nothing(snapshot, task, what, number))


class Source:
    """The output of one attempt: its copy here, brought up to date where nobody else does."""

    def __init__(self, reader: Reader, task: str, number: int | None) -> None:
        self.reader, self.task, self.number = reader, task, number
        self._stack = ExitStack()
        self._service: Service | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def is_over(self) -> bool:
        """Whether the task is."""
        return self.reader.snapshot().task(self.task).state in OVER

    def is_alone(self) -> bool:
        """Whether nobody advances the graph."""
        return self.reader.engine_holder(self.reader.snapshot()) is None

    def refresh(self) -> Copied | None:
        """Asks the host, unless an engine does; None when it was not asked."""
        snapshot = self.reader.snapshot()
        snapshot.task(self.task)  # UnknownTask, before all else
        if not self.reader.copy_is_behind(snapshot, self.task, number=self.number):
            return None
        if self._service is None:
            from runbook.service import Service  # loads what reaches hosts

            opened = Service.open(self.reader.workspace.root)
            self._service = self._stack.enter_context(opened)
        return self._service.copy_logs(self.task, number=self.number)

    def path(self, stream: str) -> Path | None:
        """The copy of one stream, if there is any."""
        return self.reader.log_path(self.task, stream, number=self.number)

    def copied_at(self) -> datetime | None:
        """When the copy last grew; None when there is none."""
        paths = [self.path(stream) for stream in ("out", "err")]
        times = [path.stat().st_mtime for path in paths if path is not None]
        return datetime.fromtimestamp(max(times), UTC) if times else None

    def older(self, copied: Copied) -> tuple[str, str]:
        """That this is not the newest, why, and what to do about it."""
        when = self.copied_at()
        copy = "nothing of it was copied yet"
        if when is not None:
            copy = f"the copy is from {when.astimezone():%H:%M:%S}"
        problem = report.clean(copied.problem).rstrip(".")
        text = f"{copy}; nobody copies it, and its host was asked in vain: {problem}."
        hints = [report.clean(copied.hint), "`runbook run` goes on once it answers"]
        return text[0].upper() + text[1:], "; ".join(hint for hint in hints if hint)


def _nothing(
    snapshot: Snapshot, task: str, what: str, number: int | None = None
) -> tuple[str, str]:
    """Why there is nothing to print."""
    state, attempt = told_state(snapshot.task(task)), numbered(snapshot, task, number)
    hint = f"`runbook status {task}` shows its checks and results."
    if attempt is not None and attempt.state is AttemptState.NEVER_STARTED:
        return f"Attempt {attempt.number} of `{task}` never started; it is {state}.", hint
    if number is not None:
        return f"Attempt {number} of `{task}` wrote nothing{what} that was kept.", hint
    return f"`{task}` has written nothing{what}; it is {state}.", hint


def _follow(source: Source, stream: str, lines: int) -> int:
    """Prints what is new until the task is over; the exit code."""
    shown: Path | None = None
    offset, silent_since, told = 0, 0.0, ""
    while True:
        # Asked before the output is read: whoever leaves in between has copied more.
        over, alone = source.is_over(), source.is_alone()
        copied = source.refresh()
        path = source.path(stream)
        if path is not None and (path != shown or path.stat().st_size > offset):
            data = _from(path, offset if path == shown else 0)
            offset = len(data) + (offset if path == shown else 0)
            # Of a first attempt the end; a later one is followed from its beginning.
            report.text(_safe(data)) if shown else report.line(_tail(data, lines))
            shown = path
        if copied is not None and copied.problem:
            silent_since = silent_since or time.monotonic()
            text, hint = source.older(copied)
            if not told:
                report.error(text, hint)
            told = text
            if offset == 0 or time.monotonic() - silent_since > SILENT_S:
                return Exit.UNKNOWN
        elif copied is not None:
            silent_since, told = 0.0, ""
            if not copied.goes_on:
                _tell_if_nothing(source, shown)
                _tell_over(source, copied)
                return Exit.OK
        elif over or (alone and source.is_alone()):
            _tell_if_nothing(source, shown)
            return Exit.OK
        time.sleep(STEP_S[copied is not None])


def _tell_if_nothing(source: Source, shown: Path | None) -> None:
    if shown is None:
        report.error(*_nothing(source.reader.snapshot(), source.task, ""))


def _tell_over(source: Source, copied: Copied) -> None:
    if not source.is_over():
        text = f"`{source.task}`: its job is over ({copied.state}) and nobody recorded it."
        report.error(text, "`runbook run` does, and goes on.")


def _from(path: Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read()


def _end(path: Path, lines: int) -> bytes:
    """As much of a log as so many lines can need; all of it for 0."""
    size = path.stat().st_size
    return _from(path, max(0, size - max(1 << 20, lines << 12)) if lines else 0)


def _tail(data: bytes, lines: int) -> str:
    text = _safe(data).rstrip("\n")
    rows = text.split("\n")
    return "\n".join(rows[-lines:] if lines else rows)


def _safe(data: bytes) -> str:
    """Host output for a terminal: no control codes, progress bars as their last line."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    rows = (row.rsplit("\r", 1)[-1] for row in text.split("\n"))
    return "\n".join("".join(c for c in row if c.isprintable() or c == "\t") for row in rows)
