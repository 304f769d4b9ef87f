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


def test_every_module_of_dflash_is_on_the_map() -> None:
    from pathlib import Path

    root = Path(__file__).parent.parent
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = {path.stem for path in (root / "dflash").glob("*.py")} - {"__init__"}
    assert sorted(name for name in names if f"`{name}`" not in text) == []


def test_every_path_on_the_map_is_there() -> None:
    import re
    from pathlib import Path

    root = Path(__file__).parent.parent
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    tops = "runbook|state|remote|dflash|tests|scripts|docs|engine"
    paths = re.findall(rf"`((?:{tops})/[\w/.*<>-]*)`", text)
    assert len(paths) > 40
    gone = [
        path
        for path in paths
        if "<" not in path and not [*root.glob(path), *(root / "runbook").glob(path)]
    ]
    assert gone == []
