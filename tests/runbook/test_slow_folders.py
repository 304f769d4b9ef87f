"""What the facts of a host say of a folder: slow by a figure, and where else to go."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runbook.slow_folders import NOT_MEASURED, slow_folder, slow_rows
from runbook.steps.slow import warned

MOUNTS = [
    {"path": "/", "type": "ext4", "network": False, "free_bytes": 50 << 30},
    {"path": "/net", "type": "nfs4", "network": True, "free_bytes": 900 << 30},
    {"path": "/net/fast", "type": "lustre", "network": True, "free_bytes": 900 << 30},
    {"path": "/scratch", "type": "xfs", "network": False, "free_bytes": 800 << 30},
    {"path": "/dev/shm", "type": "tmpfs", "network": False, "free_bytes": 990 << 30},
]
FIGURE = "a small file takes 31.0 ms to open"
SLOW = {
    "path": "/net/home", "verdict": "slow", "why": FIGURE,
    "alternative": {"path": "/scratch/me", "free_bytes": 800 << 30},
}  # fmt: skip
FAST = {"path": "/net/fast/data", "verdict": "ok", "why": ""}
FACTS = {"mounts": MOUNTS, "radar": [SLOW, FAST]}


def test_a_network_mount_is_told_with_its_figure_and_a_local_folder():
    found = slow_folder(FACTS, "/net/envs/train")
    assert found is not None
    assert (found.why, found.instead) == (FIGURE, "/scratch/me")
    assert str(found) == (
        f"/net/envs/train is slow (nfs4 at /net): {FIGURE}; /scratch/me is local, 800.0 GiB free"
    )


@pytest.mark.parametrize("path", ["/net/fast/envs", "/scratch/envs", "/dev/shm/model", "/home/me"])
def test_a_fast_network_and_local_disks_are_not(path):
    assert slow_folder(FACTS, path) is None


def test_a_network_mount_that_nobody_measured_says_so():
    unknown = {"path": "/net/home", "verdict": "unknown", "why": "nothing there to measure"}
    found = slow_folder({"mounts": MOUNTS, "radar": [unknown]}, "/net/envs")
    assert found is not None
    assert (found.why, found.instead) == (NOT_MEASURED, "/scratch")


def test_one_slow_folder_of_a_disk_is_not_the_disk():
    spins = {"path": "/data/old", "verdict": "slow", "why": "it reads 20 MB/s"}
    facts = {"mounts": MOUNTS, "radar": [spins]}
    assert slow_folder(facts, "/data/old/envs") is not None
    assert slow_folder(facts, "/data/new") is None
    assert [found.path for found in slow_rows(facts)] == ["/data/old"]


def test_facts_of_an_older_time_say_nothing():
    assert slow_folder({}, "/net/envs") is None


def test_a_step_measures_what_nobody_measured_and_warns_once_per_folder():
    said: list[str] = []
    asked: list[list[str]] = []

    def radar(paths: list[str]) -> list[dict[str, Any]]:
        asked.append(paths)
        return [SLOW]

    context: Any = SimpleNamespace(
        facts={"mounts": MOUNTS}, host=SimpleNamespace(radar=radar), log=said.append, task_id="env"
    )
    lines = list(warned(context, "/net/envs/train", "/net/envs/train", "/scratch/model"))
    assert asked == [["/net/envs/train", "/net/envs"]]
    assert len(lines) == len(said) == 1
    assert FIGURE in lines[0]
    dry: Any = SimpleNamespace(facts=FACTS, host=None, log=said.append, task_id="env")
    assert FIGURE in next(warned(dry, "/net/envs/train"))
    assert len(said) == 1, "a plan is not a start"
