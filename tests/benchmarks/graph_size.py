"""What looking at a graph and moving in it costs, at 100, 1,000 and 10,000 tasks.

Processor seconds of one look, so that other work on the machine hardly counts; the last column is
how much more ten times the tasks cost. Run: python tests/benchmarks/graph_size.py
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from runbook.cli.read import _graph_data, _print_graph
from runbook.placement import place
from runbook.plan import load_text
from runbook.service import Service
from state import AttemptState, FailureClass, HostBinding, TaskState

if TYPE_CHECKING:
    from collections.abc import Callable

    from runbook.plan import Runbook
    from runbook.views import View

SIZES = (100, 1_000, 10_000)
FILE = """\
version: 1
name: size
title: {tasks} tasks
hosts: {{box: {{}}}}
phases: {{one: Make, two: Check, three: Join}}
defaults: {{host: box}}
tasks:
  make:
    for_each: {{i: {half}}}
    title: Make shard ${{each.i}}
    phase: one
    step: shell
    with: {{argv: [make, "--shard", "${{each.i}}", "--out", "${{host.work}}/made"]}}
    done_when: [{{file: {{path: "${{host.work}}/made/${{each.i}}"}}}}]
  check:
    for_each: {{i: {half}}}
    title: Check shard ${{each.i}}
    phase: two
    needs: ["make[${{each.i}}]"]
    step: shell
    with: {{argv: [check, "${{each.i}}"]}}
  join:
    title: Join them
    phase: three
    needs: [check]
    step: shell
    with: {{argv: [join]}}
"""


def runbook(tasks: int) -> Runbook:
    """Two stages of shards, each needing its counterpart, and one task that needs them all."""
    return load_text(FILE.format(tasks=tasks, half=(tasks - 1) // 2), path="size", params={})


def workspace(folder: Path, tasks: int, done: int) -> Service:
    """So many of the first stage are done, with an attempt and evidence each."""
    service = Service.create(folder, runbook(tasks), actor="bench")
    with service.store.write() as tx:
        tx.bind_host(HostBinding(role="box", kind="local", root=str(folder), work=str(folder)))
        for index in range(done):
            finish(tx, f"make[{index}]")
    return service


def finish(tx, name: str) -> None:
    """One task from ready to done, as the engine writes it."""
    detail = {"summary": ["make"], "job": {"argv": ["make"], "ports": []}, "done_when": []}
    attempt = tx.create_attempt(name, host="box", epoch="e", detail=detail)
    tx.move_task(name, TaskState.ACTIVE, expect={TaskState.READY})
    tx.move_attempt(attempt.id, AttemptState.EXITED, expect={AttemptState.INTENDED}, exit_code=0)
    tx.move_attempt(attempt.id, AttemptState.COLLECTING, expect={AttemptState.EXITED})
    tx.move_task(name, TaskState.VERIFYING, expect={TaskState.ACTIVE})
    spec = {"file": {"path": f"/work/made/{name}"}}
    tx.record_check(
        name, purpose="done", name="file", spec=spec, verdict="pass", evidence={"size": 1}
    )
    tx.move_attempt(
        attempt.id, AttemptState.VERIFIED, expect={AttemptState.COLLECTING}, cls=FailureClass.OK
    )
    tx.move_task(name, TaskState.DONE, expect={TaskState.VERIFYING})


def looks(service: Service, tasks: int, done: int) -> dict[str, Callable[[], object]]:
    """What is measured, by name."""
    index = iter(range(done, tasks))

    def move() -> None:
        with service.store.write() as tx:
            finish(tx, f"make[{next(index)}]")

    def status() -> View:
        view = service.view()
        _print_graph(view, every=False)
        return view

    return {
        "load the file": lambda: runbook(tasks),
        "read the graph": service.snapshot,
        "status": status,
        "status --json": lambda: _graph_data(service.view()),
        "next": lambda: service.view().next,
        "PROGRESS.md": lambda: service.progress_body(service.snapshot()),
        "what may start": lambda: place(service.snapshot()),
        "one task done": move,
    }


def measured(look: Callable[[], object], times: int = 2) -> float:
    """The quickest of some looks, in processor seconds."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        look()
        best = min(best, time.process_time() - began)
    return best


def table(
    sizes: tuple[int, ...] = SIZES, *, share_done: int = 4, without: str = ""
) -> dict[str, dict[int, float]]:
    """Processor seconds by look and size; one in `share_done` tasks is done."""
    found: dict[str, dict[int, float]] = {}
    for tasks in sizes:
        done = tasks // share_done
        with (
            tempfile.TemporaryDirectory() as folder,
            workspace(Path(folder), tasks, done) as service,
            quiet(),
        ):
            for name, look in looks(service, tasks, done).items():
                if name != without:
                    found.setdefault(name, {})[tasks] = measured(look)
    return found


class quiet:
    """What is printed is made, and shown to nobody."""

    def __enter__(self) -> None:
        self.kept = sys.stdout
        sys.stdout = Path("/dev/null").open("w")

    def __exit__(self, *_: object) -> None:
        sys.stdout.close()
        sys.stdout = self.kept


def main() -> None:
    """Prints the table as Markdown."""
    found = table()
    print("| | " + " | ".join(f"{size:,} tasks" for size in SIZES) + " | tenfold |")
    print("|---|" + "--:|" * (len(SIZES) + 1))
    for name, row in found.items():
        cells = " | ".join(f"{row[size] * 1000:.1f} ms" for size in SIZES)
        print(f"| {name} | {cells} | {row[SIZES[-1]] / max(row[SIZES[-2]], 1e-6):.1f} x |")


if __name__ == "__main__":
    main()
