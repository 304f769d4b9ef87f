"""What we believe of SGLang, asked of SGLang: its parser takes every command line that the cases
make, and its flags are those we know.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from runbook.serving.flags import LATEST, flags_of
from runbook.steps.serve import Serve
from tests.support.sglang_server import serve_python

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


def test_a_token_tells_one_start_from_another() -> None:
    """The identity check of readiness stands on it."""
    assert Serve()._new_token() != Serve()._new_token()
