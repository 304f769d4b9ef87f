"""Whole runs on a tiny target: topology, resume, signals, a killed rank, refused resumes."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file

from dflash.drafter_run import DrafterRun
from dflash.errors import DflashError, Interrupted
from dflash.run_record import METRICS
from dflash.train import train
from dflash.train_config import TrainConfig
from tests.support.ranks import train_in_ranks
from tests.support.tiny_runs import losses, make_inputs, options, write_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 120


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def run_train(inputs: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainConfig.from_json(options(inputs, out, **changes)))


def weights(out: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(out / f"step-{step:06d}" / "model.safetensors")


started: list[subprocess.Popen[bytes]] = []


@pytest.fixture(autouse=True)
def none_goes_on() -> Iterator[None]:
    """A test that fails leaves no training of 100,000 steps behind."""
    yield
    while started:
        process = started.pop()
        process.kill()
        process.wait()


def start(inputs: Path, out: Path, **changes: Any) -> subprocess.Popen[bytes]:
    out.parent.mkdir(parents=True, exist_ok=True)
    config = out.with_suffix(".json")
    config.write_text(json.dumps(options(inputs, out, **changes)))
    argv = [sys.executable, "-m", "dflash", "train", "--config", str(config)]
    with out.with_suffix(".err").open("wb") as err:
        started.append(subprocess.Popen(argv, stderr=err, cwd=REPOSITORY, start_new_session=True))
    return started[-1]


def until(predicate: Callable[[], object], what: str, process: subprocess.Popen[bytes]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = predicate()
        if found:
            return found
        assert process.poll() is None, f"ended with {process.returncode} before {what}"
        time.sleep(0.02)
    raise AssertionError(f"waited {DEADLINE_S} s for {what}")


def steps_done(out: Path) -> int:
    return max(losses(out), default=0) if (out / METRICS).exists() else 0


def rank_pids(parent: int) -> dict[str, int]:
    """The job's processes by rank, from /proc."""
    found = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        rank = [e.removeprefix(b"RANK=") for e in environment if e.startswith(b"RANK=")]
        if rank:
            found[rank[0].decode()] = int(pid)
    return found


@pytest.fixture(scope="module")
def reference(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that all others must equal: one process, no interruption."""
    out = tmp_path_factory.mktemp("reference") / "out"
    summary = run_train(inputs, out)
    assert summary["step"] == 6
    return out


def test_it_learns_to_count(inputs: Path, tmp_path: Path) -> None:
    summary = run_train(inputs, tmp_path / "out", steps=60, anchors_per_doc=32)
    assert summary["acceptance"] > 1.2
    assert losses(tmp_path / "out")[60] < 0.8 * losses(tmp_path / "out")[1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_resume_is_exact_bit_for_bit(inputs: Path, tmp_path: Path, dtype: str) -> None:
    out = tmp_path / "out"
    run_train(inputs, out, dtype=dtype)
    whole, expected = losses(out), weights(out, 6)
    for path in (out / "step-000006").iterdir():
        path.unlink()
    (out / "step-000006").rmdir()  # as if killed before the second checkpoint
    (out / METRICS).unlink()
    run_train(inputs, out, dtype=dtype)
    assert losses(out) == {step: loss for step, loss in whole.items() if step > 3}
    for name, tensor in weights(out, 6).items():
        assert torch.equal(tensor, expected[name])


def test_two_runs_never_share_a_folder(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash.train.LOCK_PATIENCE_S", 0.2)
    with (tmp_path / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DflashError, match="Another training run"):
            run_train(inputs, tmp_path)


def test_a_finished_run_is_not_run_again(inputs: Path, reference: Path) -> None:
    before = losses(reference)
    assert run_train(inputs, reference)["step"] == 6
    assert losses(reference) == before


def in_ranks(inputs: Path, tmp_path: Path, **changes: Any) -> Path:
    """The same by separate processes, started as torchrun would."""
    out = tmp_path / "out"
    codes = train_in_ranks(options(inputs, out, colocated=False, **changes), tmp_path)
    assert set(codes) == {0}
    return out


def test_separate_ranks_compute_what_one_process_does(
    inputs: Path, reference: Path, tmp_path: Path
) -> None:
    out = in_ranks(inputs, tmp_path)
    assert losses(out) == losses(reference)
    for name, tensor in weights(reference, 6).items():
        assert torch.equal(weights(out, 6)[name], tensor)


@pytest.mark.parametrize(
    "split",
    [{"targets": 2}, {"targets": 2, "drafters": 2}, {"drafters": 2, "shard_optimizer": True}],
)
def test_any_split_trains_the_same_sequence(
    inputs: Path, reference: Path, tmp_path: Path, split: dict[str, Any]
) -> None:
    out = in_ranks(inputs, tmp_path, **split)
    assert losses(out) == pytest.approx(losses(reference), rel=1e-5)
    for name, tensor in weights(reference, 6).items():
        torch.testing.assert_close(weights(out, 6)[name], tensor, atol=1e-4, rtol=1e-3)


def test_sigterm_finishes_the_step_saves_and_exits_75(inputs: Path, tmp_path: Path) -> None:
    """Sent to all of a job, as a stop does; the launcher passes it on to its ranks once more."""
    out, split = tmp_path / "out", {"colocated": False, "targets": 2, "drafters": 1}
    process = start(inputs, out, **split, steps=100000, micro_batches=40, save_every=100000)
    until(lambda: steps_done(out) >= 2, "two steps", process)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=DEADLINE_S) == 75
    newest = (out / "latest").read_text().strip()
    assert newest == f"step-{steps_done(out):06d}"
    assert b"again" in out.with_suffix(".err").read_bytes()


def test_one_process_alone_stops_and_goes_on_as_well(
    inputs: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, step = tmp_path / "out", DrafterRun._one_step

    def asked(run: DrafterRun) -> None:
        step(run)
        if run.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(DrafterRun, "_one_step", asked)
    with pytest.raises(Interrupted, match="after step 2 of 6") as caught:
        run_train(inputs, out)
    assert caught.value.exit_code == 75
    assert (out / "latest").read_text() == "step-000002\n"
    assert run_train(inputs, out)["step"] == 6
    assert losses(out) == losses(reference)


def test_a_killed_rank_ends_the_job_with_the_reason(inputs: Path, tmp_path: Path) -> None:
    """Either rank, the launcher, and every phase: tests/faults/test_killed_training.py."""
    victim = "0"
    out = tmp_path / "out"
    process = start(inputs, out, colocated=False, steps=100000)
    until(lambda: steps_done(out) >= 1, "a step", process)
    pids = rank_pids(process.pid)
    os.kill(pids[victim], signal.SIGKILL)
    killed = time.monotonic()
    assert process.wait(timeout=DEADLINE_S) == 1
    assert time.monotonic() - killed < 30
    said = out.with_suffix(".err").read_text()
    assert f"rank {victim} " in said.splitlines()[-2]
    assert "SIGKILL" in said
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def test_ranks_go_with_their_launcher_before_they_are_under_way(
    inputs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    process = start(inputs, out, colocated=False)
    pids = until(lambda: len(p := rank_pids(process.pid)) == 2 and p, "two ranks", process)
    process.kill()
    process.wait()
    deadline = time.monotonic() + DEADLINE_S
    while any(Path(f"/proc/{pid}").exists() for pid in pids.values()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert "loading the target" not in out.with_suffix(".err").read_text()


def test_a_poisoned_target_is_named_not_trained_on(inputs: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    root = tmp_path / "inputs"
    (root / "target").mkdir(parents=True)
    for path in (inputs / "target").iterdir():
        (root / "target" / path.name).write_bytes(path.read_bytes())
    (root / "set").symlink_to(inputs / "set")
    file = root / "target" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.2.mlp.down_proj.weight"][0] = torch.nan
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(DflashError, match=r"layer 3 gives NaN"):
        run_train(root, tmp_path / "out")


@pytest.mark.parametrize("change", [{"lr": 1e-5}, {"seed": 9}, {"steps": 9}])
def test_resume_refuses_another_run(inputs: Path, reference: Path, change: dict) -> None:
    with pytest.raises(DflashError, match="different run"):
        run_train(inputs, reference, **change)


def test_resume_refuses_other_data(inputs: Path, reference: Path, tmp_path: Path) -> None:
    write_set(tmp_path / "set", seed=5)
    with pytest.raises(DflashError, match="data"):
        run_train(inputs, reference, data=str(tmp_path / "set"), targets=2)


def test_a_mask_token_that_occurs_is_refused(inputs: Path, tmp_path: Path) -> None:
    with pytest.raises(DflashError, match="mask"):
        run_train(inputs, tmp_path / "out", mask_token=50)


@pytest.mark.parametrize("colocated", [True, False])
def test_a_config_alone_is_enough_to_measure_speed(
    inputs: Path, tmp_path: Path, *, colocated: bool
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes((inputs / "target" / "config.json").read_bytes())
    topology = {"colocated": colocated, "random_weights": True, "target": str(config)}
    rates = run_train(inputs, tmp_path / "out", **topology)["rates"]
    assert rates["steps"] == 1
    assert rates["slower"] in (("both",) if colocated else ("target", "drafter"))
    assert 0 < rates["tok_s"] < 1.3 * rates["bound_tok_s"]
    assert rates["target_tok_s"] > 0 < rates["drafter_tok_s"]


def test_time_is_up(inputs: Path, tmp_path: Path) -> None:
    summary = run_train(inputs, tmp_path / "out", steps=100000, minutes=0.01)
    assert summary["ended"] == "time"
    assert 0 < summary["step"] < 100000
