"""JSON of a wrong shape: the first wrong place in words, and no traceback from any command."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dflash.__main__ import main
from dflash.checkpoint import STATE, load_state
from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json
from dflash.json_shape import COUNT, misfit
from dflash.ranks import ERRORS, _said
from dflash.run_record import METRICS
from dflash.train_config import TrainConfig
from tests.support.tiny_runs import make_inputs, options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SHAPE = {"name": str, "size": COUNT, "rate?": float, "ids?": (int, [int]),
         "parts": {"*": {"files": [{"path": str}]}}}  # fmt: skip
GOOD = {"name": "a", "size": 1, "parts": {"x": {"files": [{"path": "p", "more": 1}]}}, "other": []}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, ""),
        ({"rate": None, "ids": 3}, ""),
        ({"rate": 2, "ids": [3, 4]}, ""),
        ({"name": None}, "name is null, not a text"),
        ({"size": 0}, "size is 0, not a whole number of at least 1"),
        ({"size": True}, "size is true, not a whole number of at least 1"),
        ({"size": 1.5}, "size is 1.5, not a whole number of at least 1"),
        ({"rate": float("nan")}, "rate is NaN, not a number"),
        ({"rate": 10**400}, f"rate is {'1' + '0' * 39}…, not a number"),
        ({"ids": ["x"]}, 'ids is ["x"], not a whole number'),
        ({"parts": []}, "parts is [], not an object"),
        ({"parts": {"x": None}}, "parts.x is null, not an object"),
        ({"parts": {"x": {}}}, "it has no parts.x.files"),
        ({"parts": {"x": {"files": [{"path": "p"}, 5]}}}, "parts.x.files[1] is 5, not an object"),
    ],
)
def test_the_first_wrong_place_is_named(change: dict[str, Any], says: str) -> None:
    assert misfit({**GOOD, **change}, SHAPE) == says


def test_all_that_is_missing_is_named() -> None:
    assert misfit({}, SHAPE) == "it has no name, size, parts"


@pytest.mark.parametrize("data", ["", "[1", "[]", "null", "7", "\udcff", "[" * 100_000])
def test_what_is_no_object_is_told_with_a_next_step(tmp_path: Path, data: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data.encode(errors="surrogateescape"))
    with pytest.raises(InputInvalid, match=r"x\.json") as caught:
        read_json(path, "thing", SHAPE)
    assert caught.value.hint


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs and a run of two steps, the second one of them still to do."""
    root = tmp_path_factory.mktemp("made")
    make_inputs(root / "in")
    assert main(command(root)) == 0
    return root


def command(root: Path) -> list[str]:
    values = options(root / "in", root / "run", steps=1, save_every=1)
    (root / "run.json").write_text(json.dumps(values))
    return ["train", "--config", str(root / "run.json")]


@pytest.fixture
def world(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "w")
    return tmp_path / "w"


def changed(key: str, value: Any) -> Callable[[str], str]:
    return lambda text: json.dumps({**json.loads(text), key: value})


STEP, BROKEN = "run/step-000001", (lambda text: text[: len(text) // 2], lambda _: "{}")
TRAIN = [
    *(("in/set/manifest.json", damage, "manifest") for damage in BROKEN),
    ("in/set/manifest.json", changed("splits", {"train": None}), "splits.train is null"),
    ("in/set/manifest.json", changed("splits", []), "splits is []"),
    ("in/set/manifest.json", changed("tokenizer", 5), ""),
    *((f"{STEP}/provenance.json", damage, "provenance") for damage in BROKEN),
    (f"{STEP}/provenance.json", changed("step", None), "step is null"),
    (f"{STEP}/provenance.json", changed("config", []), "config is []"),
    (f"{STEP}/config.json", changed("dflash_config", 5), "lacks target_layer_ids"),
    (f"{STEP}/config.json", changed("head_dim", None), "head_dim is null"),
    (f"{STEP}/{STATE}", lambda _: "torn", "cannot be read"),
    ("in/target/config.json", changed("text_config", None), "target is another"),
    ("in/target/config.json", changed("vocab_size", "x"), 'vocab_size is "x"'),
    ("in/target/config.json", changed("rope_parameters", 5), "rope_parameters is 5"),
]


@pytest.mark.parametrize(("file", "damage", "says"), TRAIN)
def test_train_tells_what_it_cannot_read(
    world: Path, capsys: pytest.CaptureFixture[str], file: str, damage: Any, says: str
) -> None:
    words = command(world)
    (world / "run" / "train.json").unlink()  # so that it does not end with "nothing to do"
    path = world / file
    path.write_text(damage(path.read_text(errors="replace")))
    assert main(words) == (1 if says else 0)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage", [*BROKEN, changed("checkpoint", None), changed("config", []), changed("upload", 5)]
)
def test_a_broken_summary_is_taken_for_missing_and_written_again(
    world: Path, capsys: pytest.CaptureFixture[str], damage: Any
) -> None:
    words, summary = command(world), world / "run" / "train.json"
    before = json.loads(summary.read_text())
    summary.write_text(damage(summary.read_text()))
    metrics = world / "run" / METRICS  # damaged as well: only what it can tell is lost
    events = ({"kind": "step", "done": 1}, {"kind": "step", "done": 1, "metrics": [3]},
              {"done": [], "metrics": {"loss": 1}})  # fmt: skip
    metrics.write_text("[]\n" + "".join(json.dumps({"v": 1, **one}) + "\n" for one in events))
    assert main(words) == 0
    assert "taken for missing" in capsys.readouterr().err
    again = json.loads(summary.read_text())
    assert (again["checkpoint"], again["ended"], again["data"]) == (
        str(world / STEP), before["ended"], before["data"],
    )  # fmt: skip


@pytest.mark.parametrize("change", [None, "scale", "optimiser", "rng"])
def test_a_training_state_that_lacks_something_is_refused(
    made: Path, tmp_path: Path, change: str | None
) -> None:
    state = load_state(made / STEP)
    torch.save([1] if change is None else {**state, change: None}, tmp_path / STATE)
    with pytest.raises(DflashError, match=change or "holds a list") as caught:
        load_state(tmp_path)
    assert "Remove" in caught.value.hint


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"message": 5, "pid": 1}'])
def test_a_reason_of_a_rank_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / ERRORS).mkdir()
    (tmp_path / ERRORS / "0.json").write_text(text)
    assert _said(tmp_path, 0, 1) is None


def test_a_configuration_without_its_folders_is_told() -> None:
    with pytest.raises(DflashError, match="lack target, out"):
        TrainConfig.from_json({"data": "d"})
    with pytest.raises(DflashError, match="drafters"):
        TrainConfig.from_json({"target": "t", "data": "d", "out": "o", "drafters": 0})
