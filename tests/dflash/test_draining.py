"""A server that drains gets no new prompt; taken off the list, it works again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash import draining
from dflash.servers import ServerList

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_draining_servers_are_read_from_beside_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_S", 0.0)
    monkeypatch.setenv("RUNBOOK_JOB_DIR", str(tmp_path / "jobs" / "a1"))
    known = draining.Draining.of_job()
    assert "http://127.0.0.1:30000" not in known
    (tmp_path / "draining").mkdir()
    (tmp_path / "draining" / "127.0.0.1:30000").touch()
    assert "http://127.0.0.1:30000" in known
    assert "http://127.0.0.1:30001" not in known
    monkeypatch.delenv("RUNBOOK_JOB_DIR")
    assert "http://127.0.0.1:30000" not in draining.Draining.of_job()


def test_a_draining_server_is_off_the_list_until_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "LOOK_S", 0.0)
    monkeypatch.setenv("RUNBOOK_JOB_DIR", str(tmp_path / "jobs" / "a1"))
    servers = ServerList(["http://127.0.0.1:30000", "http://127.0.0.1:30001"])
    assert servers.look() is False
    mark = tmp_path / "draining" / "127.0.0.1:30000"
    mark.parent.mkdir()
    mark.touch()
    assert servers.look() is True
    assert servers.states == {"http://127.0.0.1:30000": "draining",
                              "http://127.0.0.1:30001": "serving"}  # fmt: skip
    mark.unlink()
    assert servers.look() is True
    assert set(servers.states.values()) == {"serving"}
