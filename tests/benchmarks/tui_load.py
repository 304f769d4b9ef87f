"""What a person feels under load: how late a key is answered, and how late a timer fires.

`--lines`: a log that grows by so many lines a minute, in the log place, for `--seconds`.
`--tasks`: a graph of so many tasks, while another client writes to it, with the cursor moving.
`--replay`: a 17-hour run's progress, log and moves told at 1,000 times their speed (the soak).
Run: python tests/benchmarks/tui_load.py --lines 100000 --tasks 10000
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

os.environ.setdefault("TEXTUAL_ANIMATIONS", "none")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from runbook.reader import Reader  # noqa: E402
from runbook.tui.app import RunbookApp  # noqa: E402
from runbook.tui.start import YIELD_S  # noqa: E402
from state import open_store  # noqa: E402
from tests.support.fake_service import example, progress_lines  # noqa: E402
from tests.support.many_tasks import many_tasks  # noqa: E402
from tests.support.tui_driver import driven  # noqa: E402

SIZE = (140, 45)
ENVIRONMENT = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}
HOURS = 17
LEAST_KEYS = 41
"""Of so many, two that came while the machine did something else are not the slowest 5 %."""
SPEED = 1000


@dataclass
class Felt:
    """Milliseconds: from a key to its effect on the model, and how late a 50 ms timer fired."""

    keys: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)

    def said(self) -> str:
        return "   ".join(
            f"{name} median {statistics.median(found):.0f} p95 {quantile(found):.0f} ms"
            for name, found in (("key", self.keys), ("timer late", self.late))
        )


def quantile(found: list[float], share: float = 0.95) -> float:
    ordered = sorted(found)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def feel(app: RunbookApp, pane: object, *, until: float) -> Felt:
    """Press keys and watch a timer until then. A key counts when the cursor or the view moved."""
    felt = Felt()
    expected = time.perf_counter() + 0.05
    down = True
    while time.monotonic() < until:
        await asyncio.sleep(0.05)
        now = time.perf_counter()
        felt.late.append(max(0.0, now - expected) * 1000)
        before = where(pane)
        began = time.perf_counter()
        app.simulate_key("j" if down else "k")
        deadline = began + 2
        while where(pane) == before and time.perf_counter() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0)
        felt.keys.append((time.perf_counter() - began) * 1000)
        down = not down
        expected = time.perf_counter() + 0.05
    return felt


def where(pane: object) -> object:
    return getattr(pane, "current", None) or getattr(pane, "scroll_offset", None)


async def log_flood(lines_a_minute: int, seconds: float) -> Felt:
    """A job that talks: its copy grows ten times a second while somebody scrolls in it."""
    with tempfile.TemporaryDirectory() as name:
        world = example(Path(name))
        stop = threading.Event()

        def talk() -> None:
            number = 0
            each = lines_a_minute // 600
            while not stop.wait(0.1):
                rows = (f"step {number + n} loss 2.3 {'x' * 60}\n" for n in range(each))
                world.write_log("train", "out", "".join(rows).encode(), append=True)
                number += each

        app = RunbookApp(world.open, crash_file=Path(name) / "crash", environment=ENVIRONMENT)
        async with driven(app, SIZE) as pilot:
            await pilot.press("3")
            threading.Thread(target=talk, daemon=True).start()
            view = app.place.log_view  # type: ignore[attr-defined]
            await pilot.press("g", "j")
            felt = await feel(app, view, until=time.monotonic() + seconds)
            stop.set()
        return felt


async def many(count: int, seconds: float) -> Felt:
    """A big graph that another client keeps changing."""
    with tempfile.TemporaryDirectory() as name:
        workspace = many_tasks(Path(name), count)
        stop = threading.Event()

        def write() -> None:
            store = open_store(workspace.database, actor="other")
            while not stop.wait(0.2):
                with store.write() as tx:
                    tx.add_note("another client was here")
            store.close()

        app = RunbookApp(
            lambda: Reader.open(workspace.root),  # type: ignore[arg-type,return-value]
            crash_file=Path(name) / "crash",
            environment=ENVIRONMENT,
        )
        async with driven(app, SIZE):
            thread = threading.Thread(target=write, daemon=True)
            thread.start()
            felt = await feel(app, app.board.tasks, until=time.monotonic() + seconds)
            stop.set()
            thread.join()
        app.service.close()
        return felt


async def replay(hours: float, speed: float) -> tuple[Felt, float]:
    """A run's life, told fast: lines, steps, states; places change as a person's would."""
    with tempfile.TemporaryDirectory() as name:
        world = example(Path(name))
        world.write_log("train", "out", b"")
        stop = threading.Event()

        def live() -> None:
            step, simulated = 0, 0.0
            steps = progress_lines(1000).splitlines(keepends=True)
            while simulated < hours * 3600 and not stop.wait(0.1):
                simulated += 0.1 * speed
                world.write_log("train", "progress", steps[step % 1000], append=True)
                world.write_log("train", "out", b"step and its loss\n" * 160, append=True)
                world.move("eval", ("ready", "active", "failed", "blocked")[step % 4])
                step += 1

        app = RunbookApp(world.open, crash_file=Path(name) / "crash", environment=ENVIRONMENT)
        async with driven(app, SIZE) as pilot:
            began = resident()
            thread = threading.Thread(target=live, daemon=True)
            thread.start()
            felt, place = Felt(), 0
            while thread.is_alive() or len(felt.keys) < LEAST_KEYS:
                place = place % 9 + 1
                await pilot.press(str(place))
                await pilot.press("1")
                one = await feel(app, app.board.tasks, until=time.monotonic() + 1)
                felt.keys += one.keys
                felt.late += one.late
            stop.set()
            assert not (Path(name) / "crash").exists()
            return felt, resident() - began


def resident() -> float:
    """The most memory so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=0)
    parser.add_argument("--replay", action="store_true")
    parser.add_argument("--seconds", type=float, default=15)
    options = parser.parse_args()
    sys.setswitchinterval(YIELD_S)  # as the interface itself does
    if options.lines:
        felt = asyncio.run(log_flood(options.lines, options.seconds))
        print(f"{options.lines:,} lines a minute: {felt.said()}")
    if options.tasks:
        felt = asyncio.run(many(options.tasks, options.seconds))
        print(f"{options.tasks:,} tasks: {felt.said()}")
    if options.replay:
        felt, grown = asyncio.run(replay(HOURS, SPEED))
        print(f"{HOURS} hours at {SPEED:,} times: {felt.said()}   memory +{grown:.0f} MB")


if __name__ == "__main__":
    main()
