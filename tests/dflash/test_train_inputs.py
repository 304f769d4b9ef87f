"""What a user may get wrong, or a machine may lack: one message that says what to do."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dflash import curves
from dflash.__main__ import main
from dflash.calibrate import refuse_unequal
from dflash.errors import DflashError, InputInvalid
from dflash.gpus import unequal
from dflash.meter import peak_tflops
from dflash.optim import Optimiser
from dflash.out_of_memory import is_out_of_memory, out_of_memory
from dflash.progress import Progress
from dflash.ranks import Role
from dflash.recipe import bundled, load_recipe
from dflash.run_record import METRICS
from dflash.train import train
from dflash.train_config import TrainConfig
from tests.support.ranks import in_ranks
from tests.support.tiny_runs import events, make_inputs, options

if TYPE_CHECKING:
    from collections.abc import Iterator

CUDA = (
    "CUDA out of memory. Tried to allocate 6.00 GiB. GPU 1 has a total capacity of 139.80 GiB of "
    "which 2.50 GiB is free. Including non-PyTorch memory, this process has 137.29 GiB in use."
)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def run(inputs: Path, out: Path, **changes: Any) -> dict[str, Any]:
    return train(TrainConfig.from_json(options(inputs, out, **changes)))


def config_of(**changes: Any) -> TrainConfig:
    return TrainConfig.from_json({"target": "t", "data": "d", "out": "o", **changes})


@pytest.mark.parametrize(
    ("changes", "rank", "says", "helps"),
    [
        ({}, 0, "GPU of rank 0 (target)", "--batch-tokens (now 8192), --max-length or --ring"),
        ({}, 1, "GPU of rank 1 (drafter)", "--batch-blocks (now 2048)"),
        ({"drafters": 2, "micro_batches": 2}, 1, "(drafter)", "--shard-optimizer"),
        ({"colocated": True}, 0, "rank 0 (drafter)", "a GPU each"),
    ],
)
def test_out_of_memory_names_the_role_what_is_missing_and_the_flag(
    changes: dict[str, Any], rank: int, says: str, helps: str
) -> None:
    config = config_of(**changes)
    error = torch.OutOfMemoryError(CUDA)
    assert is_out_of_memory(error)
    told = out_of_memory(error, Role.of(config, rank), config)
    assert says in told.message
    assert "3.5 GiB missing for a tensor of 6.0 GiB" in told.message
    assert helps in told.hint


@pytest.mark.parametrize(
    ("free", "says"),
    [
        (
            (
                "100.00 GiB is free. 40.00 GiB allowed; Of the allocated memory 35.00 GiB is "
                "allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
            ),
            ": 2.0 GiB missing for",
        ),
        ("6.50 GiB is free.", " for a tensor of 6.0 GiB"),
    ],
)
def test_what_is_missing_is_of_what_the_process_may_take(free: str, says: str) -> None:
    """Under --gpu-memory the rest of the card is free, and not for this process."""
    config = config_of()
    error = torch.OutOfMemoryError(CUDA.split("2.50 GiB")[0] + free)
    told = out_of_memory(error, Role.of(config, 0), config).message
    assert f"is out of memory{says}" in told


def test_a_ring_that_no_memory_holds_is_told_by_the_rank_that_wants_it(
    inputs: Path, tmp_path: Path
) -> None:
    """For real: the allocator of the CPU refuses it, in a process of its own."""
    values = options(inputs, tmp_path / "out", colocated=False, ring=10**9)
    assert in_ranks(2, tmp_path, both_ends, values)[1] == 1
    said = json.loads((tmp_path / "out" / "rank-errors" / "1.json").read_text())
    assert said["message"].startswith("The host of rank 1 (drafter) is out of memory for a tensor")


def both_ends(rank: int, values: dict[str, Any]) -> int:
    from dflash.ranks import join_group
    from dflash.run_plan import plan
    from dflash.train import agree, rank_main
    from dflash.turns import done_by_one

    config = TrainConfig.from_json(values)
    if rank:
        return rank_main(config)
    import torch.distributed as dist

    join_group(config, cuda=False)
    done_by_one(lambda: None, mine=False, rank=1)  # whether the run is over
    agree(config, plan(config))
    dist.new_group([1])  # the target's part, up to where it would serve
    return 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"taps": [1, 3, 8]}, r"layers 0\.\.7, taps \[1, 3, 8\] do not fit"),
        ({"taps": [3, 1]}, "ascending"),
        ({"batch_docs": 25}, "24 of 24 documents .* needs 25"),
        ({"steps": None, "micro_batches": 9}, "too few samples: a pass .* 8 micro-batches"),
        ({"micro_batches": 3, "drafters": 2}, "3 do not split evenly over 2"),
        ({"split": "test"}, "no split 'test', only train"),
        ({"target": "nowhere"}, "no target's config at nowhere"),
        ({"num_taps": 9}, "9 taps do not fit .* has 8; at most 5"),
        ({"eval_split": "nope"}, "no split 'nope', only train"),
        ({"steps": None, "tokens": 5}, "--tokens 5 are less than one step"),
    ],
)
def test_a_wrong_input_is_refused_before_anything_starts(
    inputs: Path, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(DflashError, match=says):
        run(inputs, tmp_path / "out", **changes)
    assert not list((tmp_path / "out").glob("step-*"))


def test_ids_beyond_the_target_s_vocabulary_are_refused(inputs: Path, tmp_path: Path) -> None:
    config = json.loads((inputs / "target" / "config.json").read_text())
    (tmp_path / "target").mkdir()
    for file in (inputs / "target").iterdir():
        if file.name != "config.json":
            (tmp_path / "target" / file.name).symlink_to(file)
    (tmp_path / "target" / "config.json").write_text(json.dumps(config | {"vocab_size": 60}))
    with pytest.raises(InputInvalid, match=r"token .* 60 rows"):
        run(inputs, tmp_path / "out", target=str(tmp_path / "target"))


def test_a_config_that_gives_no_shape_is_named(inputs: Path, tmp_path: Path) -> None:
    shutil.copytree(inputs / "target", tmp_path / "target")
    (tmp_path / "target" / "config.json").write_text('{"vocab_size": 128, "hidden_size": 64}')
    with pytest.raises(InputInvalid, match="has no num_hidden_layers, num_attention_heads"):
        run(inputs, tmp_path / "out", target=str(tmp_path / "target"))


def test_a_world_of_another_size_is_refused(inputs: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(options(inputs, tmp_path / "out", colocated=False, targets=2)))
    found = subprocess.run(
        [sys.executable, "-m", "dflash", "train", "--config", str(config)],
        env=os.environ | {"RANK": "0", "WORLD_SIZE": "2"}, cwd=Path(__file__).parents[2],
        stderr=subprocess.PIPE, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert found.returncode == 1
    assert "2 target and 1 drafter ranks need 3 processes, 2 were started" in found.stderr
    assert "--nproc-per-node" in found.stderr
    assert "Traceback" not in found.stderr


H200, L40S = "NVIDIA H200 (140 GiB)", "NVIDIA L40S (45 GiB)"


def test_unequal_gpus_are_not_measured_as_one() -> None:
    refuse_unequal([H200, H200])
    with pytest.raises(InputInvalid, match=r"H200 \(140 GiB\), NVIDIA L40S \(45 GiB\)"):
        refuse_unequal([H200, L40S])


def test_unequal_gpus_are_told_by_rank_and_drafters_that_differ_are_warned_of() -> None:
    role = Role.of(config_of(targets=1, drafters=2, micro_batches=2), 0)
    assert unequal(role, [H200, H200, H200]) == []
    (told,) = unequal(role, [H200, L40S, L40S])
    assert told == (
        f"the GPUs differ: rank 0 (target) {H200}, rank 1 (drafter) {L40S}, rank 2 (drafter) {L40S}"
    )
    assert "as long as the slowest" in unequal(role, [H200, H200, L40S])[1]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one checkpoint of the tiny drafter, not two."""
    where = tmp_path / "small"
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1000k", "tmpfs", str(where)], check=True)
    yield where
    subprocess.run(["umount", "-l", str(where)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_ends_the_run_and_leaves_the_checkpoint_before(
    inputs: Path, small_disk: Path
) -> None:
    out = small_disk / "out"
    with pytest.raises(DflashError, match=r"Cannot save .*step-000002.*[Nn]o space") as caught:
        run(inputs, out, steps=4, save_every=1, keep=9)
    assert "previous checkpoint is whole" in caught.value.hint
    assert [path.name for path in out.glob("*step*")] == ["step-000001"]
    assert not list(out.glob(".*step*"))
    # With space again the same command goes on.
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    assert run(inputs, out, steps=4, save_every=1, keep=9)["step"] == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_older_checkpoints_make_room(inputs: Path, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,size=1900k", str(small_disk)], check=True)
    assert run(inputs, small_disk / "out", steps=4, save_every=1, keep=9)["step"] == 4
    names = sorted(path.name for path in (small_disk / "out").glob("step-*"))
    assert names[-1] == "step-000004"
    assert "step-000001" not in names


@pytest.mark.parametrize("action", ["skip", "stop"])
def test_a_gradient_that_is_not_finite(
    inputs: Path, tmp_path: Path, action: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third step's gradient is poisoned in one tensor; that one is named."""
    real = Optimiser.collect
    calls = [0]

    def poisoned(self: Optimiser) -> None:
        calls[0] += 1
        if calls[0] == 5:  # two micro-batches a step
            self.params[self.names.index("norm.weight")].grad[3] = float("inf")
        real(self)

    monkeypatch.setattr(Optimiser, "collect", poisoned)
    if action == "stop":
        with pytest.raises(DflashError, match=r"not finite in this step, first in norm\.weight"):
            run(inputs, tmp_path / "out", nonfinite="stop")
        return
    assert run(inputs, tmp_path / "out")["step"] == 6
    skipped = {e["done"]: e["metrics"].get("skipped") for e in events(tmp_path / "out")}
    assert {step: name for step, name in skipped.items() if name} == {3: "norm.weight"}


def test_recipes_are_options_that_the_command_line_overrides(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = set(TrainConfig.__dataclass_fields__)
    assert bundled() == ["paper", "seed", "wsd"]
    for name in bundled():
        config_of(**load_recipe(name, known))  # every option exists and fits
    values = options(inputs, tmp_path / "out", steps=1)
    words = ["train", "--recipe", "wsd", "--target", values["target"], "--data", values["data"],
             "--out", values["out"], "--steps", "1", "--colocated", "--block-size", "4",
             "--layers", "1", "--num-taps", "3", "--anchors-per-doc", "8"]  # fmt: skip
    assert main(words) == 0
    used = json.loads((tmp_path / "out" / "run.json").read_text())
    assert (used["loss"], used["schedule"], used["block_size"]) == ("dpace", "wsd", 4)
    said = capsys.readouterr().err
    assert "matrices: 8 tensors" in said
    assert "norms and biases: 6 tensors, 288 weights, learning rate 0.0006" in said


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("learning_rate: 3", "learning_rate, which is no option"),
        ("target: here", "target, which is no option of a recipe"),
        ("- 3", "holds a list"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_recipe_that_is_none(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(InputInvalid, match=says):
        load_recipe(str(path), set(TrainConfig.__dataclass_fields__))
    with pytest.raises(DflashError, match="no recipe 'papr'") as caught:
        load_recipe("papr", set())
    assert "Did you mean paper?" in caught.value.hint


def test_a_run_leaves_its_curves(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash.meter.peak_tflops", lambda _device: 0.5)
    out = tmp_path / "out"
    run(inputs, out, data=str(inputs / "held"), eval_prompts=1, eval_tokens=8)
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    boards = list((out / "tensorboard").glob("events.out.tfevents.*"))
    assert len(boards) == 1
    written = boards[0].read_bytes()
    for name in (b"loss", b"tok_s", b"slot_accuracy/1", b"heldout_acceptance", b"target_busy"):
        assert name in written
    last = [e for e in events(out) if e["kind"] == "step"][-1]["metrics"]
    assert {"tflops_per_device", "memory_gib", "drafter_busy", "target_waited_s"} <= set(last)
    assert 0 < last["target_busy"] < 1
    assert last["tflops_per_device"] > 0
    assert last["mfu"] == pytest.approx(last["tflops_per_device"] / 0.5)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 504),
        ("NVIDIA B200", 2250),
        ("NVIDIA T4", None),
    ],
)
def test_mfu_is_of_the_peak_of_this_gpu(
    name: str, peak: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: name)
    assert peak_tflops(torch.device("cuda", 0)) == peak
    assert peak_tflops(torch.device("cpu")) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_full_disk_costs_the_picture_and_no_training(small_disk: Path, tmp_path: Path) -> None:
    metrics = tmp_path / METRICS
    Progress(metrics).emit("step", done=1, total=2, metrics={"loss": 1.0})
    assert curves.draw(metrics, small_disk / "curves.png")
    with (small_disk / "fill").open("wb", 0) as handle, contextlib.suppress(OSError):
        while handle.write(bytes(4096)):
            pass
    assert not curves.draw(metrics, small_disk / "curves.png")
    assert sorted(path.name for path in small_disk.iterdir()) == ["curves.png", "fill"]


def test_what_cannot_be_drawn_is_said(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    run(inputs, tmp_path / "out", steps=1)
    said = capsys.readouterr().err
    assert "no TensorBoard files: tensorboardX is not installed" in said
    assert "no curves.png: matplotlib is not installed" in said
    assert "nothing is evaluated, and no checkpoint is the best: the part 'heldout' is not" in said
    assert (tmp_path / "out" / METRICS).is_file()


def test_calibration_and_plan_agree(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Blocks end a micro-batch before tokens do: the batch is what the set makes of both.
    batch = {"batch_tokens": 400, "batch_blocks": 64, "batch_docs": None}
    values = options(inputs, tmp_path / "out", **batch)
    del values["colocated"]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values))
    assert main(["train", "--config", str(path), "--calibrate-only", "--devices", "3"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    chosen, rate = said.split("Chosen: ")[1].split(",")[0], said.split("expected ")[1].split(" tok")
    assert chosen in ("1:2", "2:1")  # three colocated ranks do not divide two micro-batches
    assert not list((tmp_path / "out").glob("step-*"))
    words = ["plan", "topology", "--target", values["target"], "--data", values["data"],
             "--layers", "1", "--block-size", "4", "--num-taps", "3", "--anchors-per-doc", "8",
             "--json", "--calibrate", str(tmp_path / "out" / "calibration.json")]  # fmt: skip
    # As measured there, or with the batch said once more: the same, and the GPUs likewise.
    for said_again in ([], ["--batch-tokens", "400", "--batch-blocks", "64", "--gpus", "3"]):
        assert main([*words, *said_again]) == 0
        splits = json.loads(capsys.readouterr().out)["numbers"]["splits"]
        planned = next(one["tokens_per_s"] for one in splits if one["name"] == chosen)
        assert float(rate[0].replace(",", "")) == pytest.approx(planned, rel=0.1)


def test_ranks_that_see_other_files_are_told_apart(inputs: Path, tmp_path: Path) -> None:
    """Two nodes without a shared file system: a checkpoint on one of them only."""
    run(inputs, tmp_path / "0", steps=3, schedule="constant")
    (tmp_path / "0" / "train.json").unlink()
    values = options(inputs, tmp_path / "out", steps=6, colocated=False, schedule="constant")
    said = in_ranks(2, tmp_path, apart, values, str(tmp_path))
    assert said[0] == said[1]
    assert "Rank 0 and rank 1 differ in the newest checkpoint in --out: 3 and 0." in said[0]


def apart(rank: int, values: dict[str, Any], root: str) -> str:
    from dflash.ranks import join_group
    from dflash.train import run_rank

    config = TrainConfig.from_json(values | {"out": f"{root}/{rank}"})
    role = join_group(config, cuda=False)
    try:
        run_rank(config, role)
    except DflashError as error:
        return error.message
    return "nothing was noticed"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"taps": [0, 3, 6]}, r"taps: \(1, 3, 5\) in the checkpoint, \(0, 3, 6\) now"),
        ({"num_taps": 2}, "num_taps: 3 in the checkpoint, 2 now"),
        ({"mask_token": 126}, "mask_token"),
        ({"sliding_window": 8}, "sliding_window: None, not 8"),
    ],
)
def test_a_drafter_to_start_from_keeps_its_shape(
    inputs: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    """What asks for another is refused, not passed over."""
    run(inputs, tmp_path / "first", steps=1)
    changes = {"init_from": str(tmp_path / "first" / "step-000001"), "steps": 2} | change
    with pytest.raises(DflashError, match=says) as caught:
        run(inputs, tmp_path / "out", **changes)
    assert "--init-from decides the shape" in caught.value.hint


def test_the_shape_of_a_drafter_to_start_from_is_told(
    inputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(inputs, tmp_path / "first", steps=1)
    start = str(tmp_path / "first" / "step-000001")
    run(inputs, tmp_path / "out", steps=1, init_from=start, layers=3, block_size=16)
    assert f"shape of {start}: layers 1, blocks of 4, taps" in capsys.readouterr().err
