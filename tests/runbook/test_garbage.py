"""The engine shrinks old jobs by itself: those whose outcome and logs it has, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from runbook.engine import garbage
from runbook.engine.events import Info
from tests.support.workspaces import make, settle, states

TASKS = "".join(
    f"""\
  {name}:
    title: Talks much
    phase: one
    step: shell
    with: {{sh: "seq 1 100000; echo the end of {name}"}}
"""
    for name in ("one", "two", "three")
)


def disk_of(root: Path, attempt: str) -> int:
    (path,) = root.rglob(f"jobs/{attempt}/out.log")
    return path.stat().st_blocks * 512


@pytest.fixture
def at_once(monkeypatch):
    for name in ("FIRST_S", "OLD_S", "KEPT"):
        monkeypatch.setattr(garbage, name, 0)


def test_what_is_stored_here_is_shrunk_there(tmp_path: Path, at_once, monkeypatch) -> None:
    with make(tmp_path, TASKS) as service:
        monkeypatch.setattr(garbage, "FIRST_S", 1e9)
        service.run()
        settle(tmp_path)
        attempts = {name: service.snapshot().attempts_of(name)[0].id for name in states(service)}
        (root,) = {Path(host.root) for host in service.snapshot().hosts}
        before = {name: disk_of(root, one) for name, one in attempts.items()}
        assert min(before.values()) > 500_000
        log = service.log_path("one")
        assert log is not None
        whole = log.read_bytes()
        # Of this one the copy here is not whole: it may be all that there is.
        missing = service.log_path("three")
        assert missing is not None
        missing.write_bytes(b"1\n")
        monkeypatch.setattr(garbage, "FIRST_S", 0)
        said: list[str] = []
        service.run(listen=lambda event: said.append(event.text) if isinstance(event, Info) else 0)
        after = {name: disk_of(root, one) for name, one in attempts.items()}
        assert max(after["one"], after["two"]) < 100_000
        assert after["three"] == before["three"]
        assert log.read_bytes() == whole
        assert [text for text in said if "2 old jobs" in text]
        assert set(states(service).values()) == {"done"}
        again: list[str] = []
        service.run(listen=lambda event: again.append(event.text) if isinstance(event, Info) else 0)
        assert not [text for text in again if "old jobs" in text]


def test_the_young_and_the_newest_stay(tmp_path: Path, at_once, monkeypatch) -> None:
    monkeypatch.setattr(garbage, "OLD_S", 3600)
    with make(tmp_path, TASKS) as service:
        service.run()
        settle(tmp_path)
        ids = [attempt.id for attempt in service.snapshot().attempts]
        (root,) = {Path(host.root) for host in service.snapshot().hosts}
        service.run()
        assert min(disk_of(root, one) for one in ids) > 500_000
        monkeypatch.setattr(garbage, "OLD_S", 0)
        monkeypatch.setattr(garbage, "KEPT", 2)
        service.run()
        assert sorted(disk_of(root, one) > 500_000 for one in ids) == [False, True, True]
