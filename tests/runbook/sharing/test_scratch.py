"""The folders of `push` and `pull`: what killed ones left goes, what anybody uses stays."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from runbook.sharing import scratch as module
from runbook.sharing.scratch import scratch
from tests.support.nobody import nobody

HOLD = """
import sys
from runbook.sharing.scratch import scratch
with scratch("pull") as folder:
    (folder / "state.db").write_text("half")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def test_what_a_killed_one_left_goes_with_the_next_and_a_live_one_stays(place: Path) -> None:
    holders = [
        subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[3],
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        killed, live = (Path(one.stdout.readline().strip()) for one in holders if one.stdout)
        assert sorted(place.iterdir()) == sorted([killed, live])
        holders[0].kill()
        holders[0].wait()
        assert killed.exists()
        holders[1].send_signal(signal.SIGSTOP)  # as asleep as a laptop, and not dead
        with scratch("push") as own:
            assert sorted(place.iterdir()) == sorted([live, own])
            with scratch("push"):
                assert own.exists()
        assert list(place.iterdir()) == [live]
        assert (live / "state.db").read_text() == "half"
    finally:
        for one in holders:
            one.kill()
            one.communicate()


def test_what_is_not_this_users_or_not_ours_stays(place: Path) -> None:
    others = {"runbook-push-notes", "runbook-pull-abcdefgh", "push-abcdefgh.scratch"}
    for name in others:
        (place / name).mkdir()
    (place / "runbook-push-a.scratch").touch()
    target = place / "target"
    target.mkdir()
    (place / "runbook-pull-b.scratch").symlink_to(target)
    if os.geteuid() == 0:
        foreign = place / "runbook-push-c.scratch"
        foreign.mkdir()
        os.chown(foreign, 65534, 65534)
    before = sorted(place.iterdir())
    with scratch("pull"):
        pass
    assert sorted(place.iterdir()) == before


def test_one_that_was_swept_before_it_was_held_is_made_again(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may look between the making of a folder and its lock."""
    hold, swept = module._hold, []

    def late(folder: Path) -> int | None:
        if not swept:
            swept.append(folder)
            module._sweep(place)
            assert not folder.exists()
        return hold(folder)

    monkeypatch.setattr(module, "_hold", late)
    with scratch("push") as folder:
        assert folder.is_dir()
        assert [folder] != swept
    assert not list(place.iterdir())


def test_one_whose_place_was_taken_meanwhile_is_not_held(place: Path) -> None:
    folder = place / "runbook-push-d.scratch"
    folder.mkdir()
    held = module._open(folder)
    shutil.rmtree(folder)
    folder.mkdir()
    assert not module._is_at(folder, held)
    os.close(held)


def test_a_temporary_folder_that_nobody_may_list_is_no_hindrance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1333)
        monkeypatch.setattr(tempfile, "tempdir", name)
        with nobody():
            with pytest.raises(PermissionError):
                list(Path(name).iterdir())
            with scratch("push") as folder:
                assert folder.is_dir()
        Path(name).chmod(0o700)
        assert not list(Path(name).iterdir())
