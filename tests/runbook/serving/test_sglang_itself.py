"""What we believe of SGLang, asked of SGLang: its parser takes every command line that the cases
make, its flags are those we know, and starts that fail are diagnosed by its own last words.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runbook.serving.diagnosis import Diagnosis, diagnose
from runbook.serving.flags import LATEST, flags_of
from runbook.steps.serve import Serve
from runbook.steps.serve_args import ServeArgs
from runbook.steps.server_argv import server_argv
from tests.support.sglang_server import serve_python, start_and_fail
from tests.support.toy_model import make_toy_model

CASES = Path(__file__).parents[1] / "steps" / "cases"
PARSE = """
import argparse, contextlib, io, json, sys
from sglang.srt.server_args import ServerArgs
import sglang
parser = argparse.ArgumentParser(prog="sglang serve")
ServerArgs.add_cli_args(parser)
problems = {}
for name, words in json.load(sys.stdin).items():
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit:
        problems[name] = said.getvalue()[-300:]
names = sorted({word for action in parser._actions for word in action.option_strings})
print(json.dumps({"version": sglang.__version__, "problems": problems, "names": names}))
"""


def command_lines() -> dict[str, list[str]]:
    """Of every case of `serve` and every variant of `bench` that SGLang is to serve."""
    found: dict[str, list[str]] = {}
    for path in sorted(CASES.glob("serve/*.json")):
        argv = json.loads(path.read_text()).get("argv") or [""]
        if argv[0].endswith("/sglang"):
            found[path.stem] = argv[2:]
    for path in sorted(CASES.glob("bench/*.json")):
        words = json.loads(path.read_text()).get("argv") or []
        for flag, word in itertools.pairwise(words):
            if flag == "--variant":
                found[f"bench {json.loads(word)['name']}"] = json.loads(word)["argv"][2:]
    return found


def test_its_parser_takes_every_template_and_its_flags_are_those_we_know() -> None:
    lines = command_lines()
    assert {"every_template", "dflash_drafter", "bench hicache"} <= set(lines)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    done = subprocess.run(
        [str(serve_python()), "-c", PARSE], input=json.dumps({**lines, "wrong": ["--no-such"]}),
        capture_output=True, text=True, timeout=300, check=False, env=environment, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert told["version"] == LATEST
    assert list(told["problems"]) == ["wrong"], told["problems"]
    # `sglang serve` takes this one out before it parses the rest.
    assert {n for n in told["names"] if n.startswith("--")} == flags_of(LATEST) - {"--model-type"}


def failing(tmp_path: Path, **given: Any) -> list[str]:
    args = {"venv": "/v", "model": str(tmp_path / "toy"), "served_name": "m", "port": 21999,
            "device": "cpu", "dtype": "float32"}  # fmt: skip
    return list(server_argv(ServeArgs.model_validate({**args, **given}), "token")[1:])


def check(found: Diagnosis | None, kind: str, said: str) -> None:
    assert found is not None, kind
    assert (found.kind, found.final) == (kind, True), found
    assert said in found.line


def test_a_start_that_fails_is_diagnosed(tmp_path: Path) -> None:
    """The two quickest; the others are in the soak below, for each loads half a minute."""
    bad_flag = [*failing(tmp_path), "--cuda-graph-max-bs", "8"]
    no_model = failing(tmp_path, model=str(tmp_path / "nowhere"))
    flag, model = start_and_fail(bad_flag, no_model, folder=tmp_path)
    found = diagnose(flag)
    check(found, "flag", "--cuda-graph-max-bs")
    assert found is not None
    assert "--cuda-graph-max-bs-decode" in found.next
    check(diagnose(model), "model", "Repo id must be in the form")


@pytest.mark.skipif("RUNBOOK_SOAK" not in os.environ, reason="make soak: four starts of SGLang")
def test_starts_that_fail_late_are_diagnosed(tmp_path: Path) -> None:
    toy = make_toy_model(tmp_path / "toy")
    cut = make_toy_model(tmp_path / "cut")
    weights = cut.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    strange = make_toy_model(tmp_path / "strange")
    config = json.loads((strange.path / "config.json").read_text())
    config["architectures"] = ["NobodyForCausalLM"]
    (strange.path / "config.json").write_text(json.dumps(config))
    starts = {
        "weights": failing(tmp_path, model=str(cut.path)),
        "architecture": failing(tmp_path, model=str(strange.path)),
        "context": failing(tmp_path, model=str(toy.path), context_length=99999),
        "pool": failing(tmp_path, model=str(toy.path), mem_fraction=0.0001),
        "backend": [*failing(tmp_path, model=str(toy.path)), "--enable-hierarchical-cache",
                    "--hicache-size", "1"],
    }  # fmt: skip
    for kind, words in starts.items():
        (log,) = start_and_fail(words, folder=tmp_path)
        found = diagnose(log)
        assert found is not None, (kind, log[-2000:])
        assert found.kind == kind, (kind, found)


def test_a_token_tells_one_start_from_another() -> None:
    """The identity check of readiness stands on it."""
    assert Serve()._new_token() != Serve()._new_token()
