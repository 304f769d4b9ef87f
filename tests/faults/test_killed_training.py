"""kill -9 of any process of a training, in any phase: the same command ends as if nothing was.

RUNBOOK_SEED chooses where to begin and the moments, RUNBOOK_KILLS how often: 12 are every role in
every phase. A failure names them.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dflash.errors import EXIT_FAILED
from dflash.train import train
from dflash.train_config import TrainConfig
from tests.support.tiny_runs import events, losses, make_inputs, options

if TYPE_CHECKING:
    from collections.abc import Callable

REPOSITORY = Path(__file__).parents[2]
SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
KILLS = int(os.environ.get("RUNBOOK_KILLS", "1"))
ROLES = ("target", "drafter", "launcher")
PHASES = ("start", "load", "step", "save")
STEPS, ENDS_WITHIN_S = 24, 60.0


def test_killed_in_any_phase_it_still_ends_as_if_nothing_was(tmp_path: Path) -> None:
    inputs = make_inputs(tmp_path / "inputs")
    changes = {"data": str(inputs / "held"), "steps": STEPS, "save_every": 4, "eval_tokens": 8,
               "eval_prompts": 2}  # fmt: skip
    whole = options(inputs, tmp_path / "whole", **changes)
    train(TrainConfig.from_json(whole))
    out, config = tmp_path / "out", tmp_path / "config.json"
    config.write_text(json.dumps(options(inputs, out, colocated=False, **changes)))
    chance = random.Random(SEED)
    history = []
    for number in range(KILLS):
        turn = SEED + number  # twelve in a row are every role in every phase: 3 and 4 are coprime
        role, phase = ROLES[turn % len(ROLES)], PHASES[turn % len(PHASES)]
        history.append(f"{role} in {phase}")
        _kill_once(config, out, role, phase, chance, tmp_path / "err")
    final = subprocess.run(
        [sys.executable, "-m", "dflash", "train", "--config", str(config)],
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert final.returncode == 0, (history, final.stderr[-2000:])
    assert losses(out) == losses(tmp_path / "whole"), history
    assert not list(out.glob(".partial-*"))


def _kill_once(
    config: Path, out: Path, role: str, phase: str, chance: random.Random, err: Path
) -> None:
    with err.open("wb") as handle:
        job = subprocess.Popen(
            [sys.executable, "-m", "dflash", "train", "--config", str(config)],
            cwd=REPOSITORY, stderr=handle,
        )  # fmt: skip
    before = len(_steps(out))
    reached: dict[str, Callable[[], Any]] = {
        "start": lambda: len(_ranks(job.pid)) == 2,
        "load": lambda: b"loading the target" in err.read_bytes(),
        "step": lambda: len(_steps(out)) >= before + chance.randrange(1, 6),
        "save": lambda: list(out.glob(".partial-*")),
    }
    while not reached[phase]():
        if job.poll() is not None:  # it was done before the moment came
            assert job.returncode == 0, err.read_text()[-2000:]
            return
        time.sleep(0.002)
    ranks = _ranks(job.pid)
    victim = {"target": ranks.get("0"), "drafter": ranks.get("1"), "launcher": job.pid}[role]
    late = victim in (None, job.pid) or _ended(victim)
    with suppress(ProcessLookupError):
        os.kill(victim or job.pid, signal.SIGKILL)
    killed = time.monotonic()
    code = job.wait(timeout=ENDS_WITHIN_S)
    if code == 0 and (late or STEPS in _steps(out)):  # it was done before the kill
        return
    assert code in ((-signal.SIGKILL,) if role == "launcher" or victim is None else (EXIT_FAILED,))
    while any(Path(f"/proc/{pid}").exists() for pid in ranks.values()):
        assert time.monotonic() - killed < ENDS_WITHIN_S, f"a rank outlives the {role}"
        time.sleep(0.01)
    if code == EXIT_FAILED:
        assert "SIGKILL" in err.read_text()


def _ended(pid: int) -> bool:
    """Whether it waits for its parent to ask how it ended, if it is there at all."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def _steps(out: Path) -> list[int]:
    if not (out / "metrics.jsonl").is_file():
        return []
    return [event["done"] for event in events(out) if event["kind"] == "step"]


def _ranks(parent: int) -> dict[str, int]:
    """Processes of the job by rank, from /proc."""
    found = {}
    with suppress(OSError):  # gone meanwhile
        for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
            with suppress(OSError):
                for word in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if word.startswith(b"RANK="):
                        found[word.removeprefix(b"RANK=").decode()] = int(pid)
    return found


pytestmark = pytest.mark.timeout(600)
