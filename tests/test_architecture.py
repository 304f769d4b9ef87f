"""What may import what, proved by fresh interpreters: a static graph misses deferred imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("textual", "paramiko", "torch", "transformers", "pyarrow", "boto3", "numpy", "pydantic")
RULES = [
    ("import runbook", HEAVY),
    ("import runbook.cli.main", HEAVY),
    ("import runbook.cli.read", HEAVY),
    ("import runbook.service", ("textual", "paramiko", "torch", "transformers", "pyarrow")),
    ("import runbook.engine.runner", ("textual", "paramiko", "torch")),
    (
        "import runbook.cli.share, runbook.verbs.sharing, runbook.sharing.push",
        ("boto3", "botocore"),
    ),
    ("import state", (*HEAVY, "remote", "runbook", "dflash")),
    ("import remote", (*HEAVY, "state", "runbook", "dflash")),
    ("import dflash.__main__", (*HEAVY, "state", "runbook", "remote")),
    ("import dflash.config, dflash.progress, dflash.errors", (*HEAVY, "state", "runbook")),
]


@pytest.mark.parametrize(("statement", "absent"), RULES, ids=[rule[0] for rule in RULES])
def test_importing_loads_only_what_it_may(statement: str, absent: tuple[str, ...]) -> None:
    code = f"import sys; {statement}; print([m for m in {absent!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


def test_every_step_type_is_in_the_readme() -> None:
    from pathlib import Path

    from runbook.steps import STEP_TYPES

    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in STEP_TYPES if f"| `{name}`" not in text] == []


def test_every_verb_is_in_the_readme() -> None:
    from pathlib import Path

    from runbook.cli.main import COMMANDS

    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f"`{name}" not in text] == []
