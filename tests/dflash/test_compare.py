"""`dflash compare`: checkpoints on the same prompts, and reports that do not belong together."""

from __future__ import annotations

import copy
import json
import random

import pytest

from dflash.__main__ import main
from dflash.progress import Progress
from tests.support.tiny_targets import save_tiny_drafter, save_tiny_target


def report(drafter, gain, *, seed=0):
    """Sixty prompts whose lengths differ far more between prompts than between checkpoints."""
    base = random.Random(1)
    noise = random.Random(seed)
    lengths = [base.uniform(1.5, 6) + gain + noise.gauss(0, 0.1) for _ in range(60)]
    mean = sum(lengths) / len(lengths)
    return {
        "format": "dflash-eval/1",
        "request": {
            "target": {"path": "t", "sha256": "a"},
            "prompts": {"path": "p", "sha256": "b"},
            "sampling": {"temperature": 0.0, "max_new_tokens": 48},
            "drafter": {"path": drafter},
        },
        "methods": {
            "trained": {
                "acceptance_length": {"macro": mean, "micro": mean},
                "slots": [{"rate": 0.8}, {"rate": 0.6}],
                "speed": {"speedup": 1.5},
            }
        },
        "lossless": {"verdict": "exact"},
        "per_prompt": [
            {"id": f"p{n}", "methods": {"trained": {"acceptance_length": length}}}
            for n, length in enumerate(lengths)
        ],
    }


def written(folder, **reports):
    paths = []
    for name, value in reports.items():
        paths.append(folder / f"{name}.json")
        paths[-1].write_text(json.dumps(value))
    return [str(path) for path in paths]


def test_a_small_gain_on_uneven_prompts_is_seen(tmp_path, capsys):
    paths = written(
        tmp_path, a=report("one", 0), b=report("two", 0.1, seed=2), c=report("three", 0, seed=3)
    )
    assert main(["compare", *paths, "--out", str(tmp_path / "found.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].endswith("*")  # 0.1 of 3.7, where prompts differ by 4
    assert not lines[3].endswith("*")
    rows = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert rows[0]["minus_first"] is None
    assert rows[1]["minus_first"]["mean"] == pytest.approx(0.1, abs=0.05)
    assert rows[1]["slots"] == [0.8, 0.6]


def test_reports_that_cannot_be_compared(tmp_path, capsys):
    good = report("one", 0)
    other = copy.deepcopy(good)
    other["request"]["prompts"]["sha256"] = "c"
    other["request"]["sampling"]["temperature"] = 1.0
    paths = written(tmp_path, a=good, b=other, c={"format": "dflash-check/1"})
    assert main(["compare", paths[0], paths[1]]) == 1
    assert "was measured otherwise than" in capsys.readouterr().err
    assert main(["compare", paths[0], paths[2]]) == 1
    assert "has format 'dflash-check/1'" in capsys.readouterr().err
    assert main(["compare", paths[0]]) == 2
    assert main(["compare", paths[0], str(tmp_path / "none.json")]) == 1
    assert "there is no report of an evaluation" in capsys.readouterr().err


def test_real_reports_are_read(tmp_path, capsys):
    from dflash.evaluate import evaluate

    target = save_tiny_target(tmp_path / "target")
    prompts = tmp_path / "data"
    from tests.dflash.test_evaluate import row, tokenized

    tokenized(prompts, [row(f"p{n}", prompt=6 + n) for n in range(3)])
    for seed in (1, 2):
        evaluate(
            target=target, drafter=save_tiny_drafter(tmp_path / f"d{seed}", seed=seed),
            data=prompts, out=tmp_path / f"{seed}.json", baselines=(), max_new_tokens=6,
            progress=Progress(),
        )  # fmt: skip
    assert main(["compare", str(tmp_path / "1.json"), str(tmp_path / "2.json")]) == 0
    assert "3 prompts" in capsys.readouterr().out
