"""Slow and hanging mounts are found by measuring, and never by two at a time."""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.deadline import wait_for


@pytest.fixture
def folder(tmp_path):
    """A folder with small files below and a large one, as a virtual environment has."""
    made = tmp_path / "folder"
    for number in range(20):
        (made / "lib" / f"{number}.py").parent.mkdir(parents=True, exist_ok=True)
        (made / "lib" / f"{number}.py").write_text("x = 1\n")
    (made / "model.bin").write_bytes(b"x" * (9 << 20))
    return made


def test_a_fast_folder_is_measured_and_ok(bench, folder):
    [row] = bench.host.radar([str(folder)])
    assert (row["path"], row["network"]) == (str(folder), False)
    assert row["opened"] == 20
    assert 0 < row["open_ms"] <= row["open_worst_ms"]
    assert row["read_bytes_s"] > 0
    assert row["verdict"] in ("ok", "slow"), "this machine's own disk may be the slow one"


def test_a_slow_folder_is_told_with_its_figure_and_another_place(bench, folder):
    [row] = bench.make_host(radar_slow_s=0.02).radar([str(folder)])
    assert row["verdict"] == "slow"
    figure = float(row["why"].split(" takes ")[1].split(" ms")[0])
    assert 20 <= figure == round(row["open_ms"], 1)
    if row["alternative"] is not None:
        assert os.access(row["alternative"]["path"], os.W_OK)
        assert row["alternative"]["free_bytes"] > 0


def test_a_virtual_environment_is_timed_by_its_own_python(bench, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "python").symlink_to(sys.executable)
    [row] = bench.host.radar([str(tmp_path / "venv")])
    assert row["import_s"] > 0


def test_what_is_not_there_is_unknown(bench, tmp_path):
    [row] = bench.host.radar([str(tmp_path / "nothing")])
    assert (row["verdict"], row["why"]) == ("unknown", "nothing there to measure")


@pytest.fixture
def fifo(bench, tmp_path):
    """Whoever opens it to read waits for a writer, as on a mount whose server is gone."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    yield path
    for pid in looking(bench.root):
        os.kill(pid, signal.SIGKILL)


def test_a_hanging_mount_is_looked_at_by_one_child_until_it_comes_back(bench, folder, fifo):
    hanging = bench.make_host(radar_hang=str(fifo), radar_limit_s=0.5, radar_cannot_be_killed=True)
    [first] = hanging.radar([str(folder)])
    assert first["verdict"] == "hung"
    assert "no answer" in first["why"]
    rows = []
    askers = [
        threading.Thread(target=lambda: rows.extend(hanging.radar([str(folder)])))
        for _ in range(6)
    ]  # fmt: skip
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert {row["verdict"] for row in rows} == {"hung"}
    assert all("has not come back" in row["why"] for row in rows)
    # One child, however often it is asked; the askers are gone a moment after their answers.
    wait_for(lambda: len(looking(bench.root)) == 1, what="one child that looks")
    os.close(os.open(fifo, os.O_WRONLY))  # there it is again
    wait_for(lambda: not looking(bench.root), what="the child to come back")
    [row] = bench.host.radar([str(folder)])
    assert row["verdict"] != "hung"


def looking(root: Path) -> list[int]:
    """Processes of our program that look at a folder now."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if b"\0radar" in words and str(root).encode() in words:
                    found.append(int(entry.name))
    return found


def test_facts_tell_what_a_job_would_find(bench, folder):
    facts = bench.make_host(radar_slow_s=0.02).facts(look_at=[str(folder)])
    assert [row["path"] for row in facts["radar"]][-1] == str(folder)
    assert facts["radar"][-1]["verdict"] == "slow"
    assert facts["sees"] in ("all", "own")
    assert facts["python"]["version"] in {one["version"] for one in facts["pythons"]}
    assert all(disk["bytes"] > 0 for disk in facts["disks"])
    assert facts["memory"]["total_bytes"] > 0
    assert facts["shm"]["memory_behind_bytes"] <= facts["memory"]["total_bytes"]
    assert facts["limits"]["open_files"][0] != 0
    root = next(mount for mount in facts["mounts"] if mount["path"] == "/")
    assert root["type"]
    assert root["free_bytes"] >= 0
