"""The commands that step types make are accepted by the programs that they are made for."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dflash.__main__ import COMMANDS, command_parser

if TYPE_CHECKING:
    from types import ModuleType

CASES = Path(__file__).parent / "cases"
PAYLOADS = Path(__file__).parents[3] / "remote" / "payloads"


def commands(first: str) -> list[tuple[str, list[str]]]:
    found = []
    for path in sorted(CASES.glob("*/*.json")):
        argv = json.loads(path.read_text()).get("argv", [])
        if argv[:2] == ["/bin/sh", "-c"] and argv[2].startswith("python3 "):
            argv = ["python3", *argv[3:]]
        if argv and argv[0].endswith(first):
            found.append((f"{path.parent.name}-{path.stem}", argv))
    return found


def payload(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"payload_{name}", PAYLOADS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
    module = payload(Path(argv[1]).stem)
    module.arguments(argv[2:])
