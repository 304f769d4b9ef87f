"""The lock files: exact pins only, consistent with each other, nothing of any one machine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from remote.payloads.venv_pins import pins_of

REPOSITORY = Path(__file__).resolve().parents[2]
LOCKS = REPOSITORY / "runbook/locks"
ROLES = ("operator", "cpu", "dev", "train-cuda", "serve", "serve-cpu")
WITH_TORCH = set(ROLES) - {"operator"}


def pins(role: str) -> dict[str, str]:
    return pins_of(LOCKS / f"{role}.lock")


@pytest.mark.parametrize("role", ROLES)
def test_a_lock_is_sorted_pins_of_released_versions(role: str) -> None:
    lines = (LOCKS / f"{role}.lock").read_text().splitlines()
    names = [line.partition("==")[0] for line in lines if not line.startswith("#")]
    assert names == sorted(set(names))
    assert list(pins(role)) == names, "names are written as registries compare them"
    assert not any("+" in version for version in pins(role).values())
    assert not re.search(r"://|--|@", "\n".join(n for n in lines if not n.startswith("#")))


def test_every_role_has_one_lock_and_torch_where_it_belongs() -> None:
    assert {p.stem for p in LOCKS.glob("*.lock")} == set(ROLES)
    assert {role for role in ROLES if "torch" in pins(role)} == WITH_TORCH
    assert not {"transformers", "pyarrow", "numpy"} & set(pins("operator"))


def test_a_developer_has_what_operator_and_cpu_have() -> None:
    assert (pins("operator") | pins("cpu")).items() <= pins("dev").items()


def test_the_serving_locks_follow_sglangs_own_pins() -> None:
    ours, gpu = pins("serve-cpu"), pins("serve")
    different = {name for name in ours if gpu.get(name, ours[name]) != ours[name]}
    assert different == {"torch", "torchvision", "triton"}
    assert ours["torch"] == pins("cpu")["torch"]


def test_missing_torchvision_operators_are_declared_once() -> None:
    code = (
        "import runbook_torchvision_ops as ops, torch;"
        "ops.watch(); ops.declare_missing(); ops.declare_missing();"
        "assert hasattr(torch.ops.torchvision, 'nms') and hasattr(torch.ops.torchvision, 'qnms')"
    )
    plugin = REPOSITORY / "runbook/serving/cpu_platform"
    subprocess.run([sys.executable, "-B", "-c", code], cwd=plugin, check=True)
