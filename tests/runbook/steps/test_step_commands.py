"""The commands that step types make are accepted by the programs that they are made for."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from dflash.__main__ import COMMANDS, command_parser
from tests.support.sglang_server import serve_python

CASES = Path(__file__).parent / "cases"


def commands(first: str) -> list[tuple[str, list[str]]]:
    found = []
    for path in sorted(CASES.glob("*/*.json")):
        argv = json.loads(path.read_text()).get("argv", [])
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("python3 "):
            argv = ["python3", *argv[3:]]
        if argv and argv[0].endswith(first):
            found.append((f"{path.parent.name}-{path.stem}", argv))
    return found


@pytest.mark.parametrize(("case", "argv"), commands("/bin/python"))
def test_dflash_takes_the_command(case: str, argv: list[str]) -> None:
    assert argv[1:3] == ["-m", "dflash"]
    name, words = argv[3], argv[4:]
    module = importlib.import_module(COMMANDS[name].module)
    parser = command_parser(name)
    module.add_arguments(parser)
    parser.parse_args(words)


@pytest.mark.parametrize(("case", "argv"), commands("python3"))
def test_the_payload_takes_the_command(case: str, argv: list[str]) -> None:
    module = importlib.import_module(f"remote.payloads.{Path(argv[1]).stem}")
    module.arguments(argv[2:])


PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
# As strict as possible: the real parser also takes any unique beginning of a flag.
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
for words in json.loads(sys.argv[1]):
    parser.parse_args(words)
print("parsed", len(json.loads(sys.argv[1])))
"""


@pytest.mark.sglang
def test_sglang_takes_the_commands() -> None:
    """Flags are removed, not renamed, between its versions."""
    python = serve_python()
    words = [argv[2:] for _, argv in commands("/bin/sglang")]
    done = subprocess.run(
        [str(python), "-c", PARSE, json.dumps(words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == f"parsed {len(words)}"
    assert len(words) >= 3
