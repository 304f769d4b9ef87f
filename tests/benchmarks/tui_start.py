"""How long until the first useful screen: ours with 2,000 tasks, and Harlequin's empty one.

Both start in tmux at 140x45, in turn, in the same run, after one start that does not count: it
compiles what an installation has compiled. A screen counts when the text that a person waits for
stands on it. Run: python tests/benchmarks/tui_start.py --harlequin VENV/bin/harlequin
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.many_tasks import many_tasks  # noqa: E402
from tests.support.tmux import Tmux  # noqa: E402

COLUMNS, ROWS = 140, 45
LIMIT_S = 30.0


def first_paint(tmux: Tmux, argv: list[str], text: str) -> float:
    """Seconds from the start of the command until the text is on the screen."""
    began = time.perf_counter()
    tmux.start("b", argv, COLUMNS, ROWS)
    try:
        tmux.wait_for("b", text, limit_s=LIMIT_S)
        return time.perf_counter() - began
    finally:
        tmux("kill-session", "-t", "b")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--harlequin", type=Path, help="Its program, from an environment of its own."
    )
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ.update(XDG_CONFIG_HOME=name, HOME=name, TERM="xterm-256color", LANG="C.UTF-8")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
        many_tasks(folder / "w", options.tasks)
        tmux = Tmux(folder)
        env = ["env", f"PYTHONPATH={ROOT}"]
        programs = {
            "runbook": ([*env, sys.executable, "-m", "runbook", "-w", str(folder / "w"), "tui"],
                        "Task number 3"),
        }  # fmt: skip
        if options.harlequin:
            program = [str(options.harlequin), "--locale", "C"]
            programs["harlequin"] = (program, "Query Results")
        found: dict[str, list[float]] = {name: [] for name in programs}
        try:
            for turn in range(options.times + 1):
                for label, (argv, text) in programs.items():
                    seconds = first_paint(tmux, argv, text)
                    if turn:
                        found[label].append(seconds)
        finally:
            tmux("kill-server")
    for label, seconds in found.items():
        said = " ".join(f"{one:.2f}" for one in seconds)
        print(f"{label:<10} median {statistics.median(seconds):.2f} s   ({said})")
    if "harlequin" in found:
        ratio = statistics.median(found["harlequin"]) / statistics.median(found["runbook"])
        print(f"{options.tasks:,} tasks: {ratio:.2f} times as fast as Harlequin's empty start")


if __name__ == "__main__":
    main()
