"""The order of files: those that take long come first, so that no worker is left alone with one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

LONG = (
    "test_simulated.py", "test_cli.py", "test_step_commands.py", "test_two_hosts.py",
    "test_docs.py", "test_evaluate.py", "test_payload_venv.py", "test_contract.py",
    "test_thinking_sglang.py", "test_two_nodes.py", "test_killed_training.py", "test_fleet.py",
    "test_sglang_itself.py", "test_train.py", "test_train_inputs.py", "test_kill_soak.py",
    "test_audit.py", "test_killed_runs.py", "test_tokenize_shares.py", "test_every_key.py",
)  # fmt: skip
"""By minutes on two cores; needs `--no-loadscope-reorder`, else xdist takes those of many tests."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: number for number, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))
