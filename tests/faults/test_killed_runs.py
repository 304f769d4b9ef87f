"""kill -9 of `runbook run` at any moment: the next one goes on, and nothing runs twice.

RUNBOOK_SEED chooses the moments; CI rotates it, and a failure names it.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from runbook.service import Service
from state.doctor import examine
from tests.support.workspaces import command, make, states

if TYPE_CHECKING:
    from pathlib import Path

SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
KILLS = min(200, int(os.environ.get("RUNBOOK_KILLS", "8")))
"""Of one `runbook run` after the other; `test_kill_soak` kills many at once."""
TASKS = """\
  probe:
    title: Probe
    phase: one
    step: probe
  left:
    title: Left
    phase: one
    needs: [probe]
    step: shell
    with: {sh: "echo left >> ${host.work}/starts; sleep 0.4"}
  right:
    title: Right
    phase: one
    needs: [probe]
    step: shell
    with: {sh: "echo right >> ${host.work}/starts; sleep 0.2"}
  both:
    title: Both
    phase: one
    needs: [left, right]
    step: shell
    with: {sh: "echo both >> ${host.work}/starts"}
"""


@pytest.mark.parametrize("seed", range(SEED, SEED + 2))
def test_killed_at_random_moments_each_task_still_runs_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    make(tmp_path, TASKS).close()
    with (tmp_path / "run.log").open("wb") as log:
        for _ in range(KILLS):
            run = subprocess.Popen(command(tmp_path, "run"), stdout=log, stderr=log)
            try:
                run.wait(timeout=0.3 + 2.5 * chance.random())
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
        last = subprocess.run(
            command(tmp_path, "run"), stdout=log, stderr=log, timeout=60, check=False
        )
    said = (tmp_path / "run.log").read_text()
    assert last.returncode == 0, said
    with Service.open(tmp_path) as service:
        assert set(states(service).values()) == {"done"}, said
        assert service.progress_is_current()
        assert examine(service.workspace.database) == []
    starts = (tmp_path / "work" / "starts").read_text().split()
    assert sorted(starts) == ["both", "left", "right"], said


def test_the_jobs_survive_the_death_of_everything_around_the_client(tmp_path: Path) -> None:
    make(tmp_path, TASKS.replace("sleep 0.4", "sleep 2")).close()
    # A session of its own, killed whole, as a closed terminal does.
    run = subprocess.Popen(
        command(tmp_path, "run"), stdout=subprocess.DEVNULL, start_new_session=True
    )
    started = tmp_path / "work" / "starts"
    deadline = time.monotonic() + 60
    while not (started.exists() and "left" in started.read_text()):
        assert time.monotonic() < deadline, "the job never started"
        time.sleep(0.05)
    os.killpg(run.pid, 9)
    run.wait()
    with Service.open(tmp_path) as service:
        assert service.run().outcome == "done"
        assert all(len(service.snapshot().attempts_of(t)) == 1 for t in ("left", "right", "both"))
    assert sorted(started.read_text().split()) == ["both", "left", "right"]
