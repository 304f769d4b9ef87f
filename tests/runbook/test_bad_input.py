"""What can be wrong when a verb is typed: one clear message, the right exit code, nothing lost."""

from __future__ import annotations

import sqlite3
import subprocess
import tempfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runbook.plan import load_text
from runbook.service import Service
from state import connection
from tests.support.nobody import nobody
from tests.support.workspaces import HEAD, make, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.runbook.conftest import Said

TASKS = """\
  a:
    title: A
    phase: one
    step: shell
    with: {argv: ["true"]}
  b:
    title: B
    phase: one
    needs: [a]
    step: shell
    with: {argv: ["true"]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(tmp_path)


def prepared(folder: Path) -> Path:
    """A workspace that no machine was bound in."""
    runbook = load_text(HEAD + TASKS, path="runbook.yaml", params={})
    Service.create(folder, runbook, actor="tester").close()
    (folder / "runbook.yaml").write_text(HEAD + TASKS, encoding="utf-8")
    return folder


def revision(folder: Path) -> int:
    with Service.open(folder) as service:
        return service.store.revision()


def one_message(said: Said, *parts: str) -> None:
    code, out, err = said
    assert out == ""
    assert err.startswith("runbook: ")
    assert err.count("runbook: ") == 1
    assert "Traceback" not in err
    assert "bug" not in err
    assert len(err.splitlines()) <= 3
    for part in parts:
        assert part in err, err
    assert code not in (0, 1, 70), code


@pytest.mark.parametrize(
    "words",
    [
        ("status", "aa"),
        ("logs", "aa"),
        ("run", "aa"),
        ("run", "--until", "aa"),
        ("stop", "aa"),
        ("retry", "aa"),
        ("skip", "aa", "--reason", "x"),
        ("supersede", "aa", "--reason", "x"),
        ("verify", "aa"),
        ("gate", "approve", "aa"),
        ("note", "x", "--task", "aa"),
    ],
    ids=lambda words: words[0],
)
def test_an_unknown_task(folder: Path, say: Callable[..., Said], words: tuple[str, ...]) -> None:
    before = revision(folder)
    said = say(folder, *words)
    one_message(said, "There is no task 'aa'", "Did you mean a?")
    assert said[0] == 2
    assert revision(folder) == before


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("retry", "a"), "Cannot retry `a`: it is ready"),
        (("gate", "approve", "b"), "Cannot approve `b`: it is blocked"),
        (("supersede", "a", "--reason", "x"), "Cannot supersede `a`: it is ready"),
        (("stop", "a"), "Nothing of `a` runs: it is ready"),
    ],
    ids=["retry", "approve", "supersede", "stop"],
)
def test_the_wrong_state(
    folder: Path, say: Callable[..., Said], words: tuple[str, ...], part: str
) -> None:
    before = revision(folder)
    said = say(folder, *words)
    one_message(said, part)
    assert said[0] == 2
    assert revision(folder) == before


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (("retry", "b"), "That works when it is failed, skipped or stale."),
        (("supersede", "a", "--reason", "x"), "That works when it is in attention."),
        (("pull",), "pull s3://BUCKET/KEY --dir DIR"),
        (("push",), "push s3://BUCKET/KEY"),
        (("host", "bind", "box", "a b"), "write user@address, or user@address:port"),
        (("claim", "a", "--for", "banana"), "that is no duration.\n  Write 90s"),
        (("host", "rent", "box", "--usd-per-hour", "x"), "'x' is not a valid amount"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else None,
)
def test_the_next_step_is_the_right_one(
    folder: Path, say: Callable[..., Said], words: tuple[str, ...], next_step: str
) -> None:
    code, _, err = say(folder, *words)
    assert code == 2
    assert next_step in err


@pytest.mark.parametrize(
    "words",
    [
        ("claim", "a", "--for", "9" * 400),
        ("host", "rent", "box", "--ends-at", "0001-01-01T00:00+01"),
    ],
    ids=["claim", "rent"],
)
def test_a_time_beyond_all_times(
    tmp_path: Path, say: Callable[..., Said], words: tuple[str, ...]
) -> None:
    make(tmp_path, TASKS).close()
    one_message(say(tmp_path, *words))


@pytest.mark.parametrize("port", ["0", "99999", "²", "x"])
def test_a_port_that_is_none(folder: Path, say: Callable[..., Said], port: str) -> None:
    said = say(folder, "host", "bind", "box", f"me@127.0.0.1:{port}")
    one_message(said, f"`{port}` is no port")


def test_a_missing_workspace(tmp_path: Path, say: Callable[..., Said]) -> None:
    one_message(say(tmp_path, "status"), "No workspace in", "runbook init")
    assert list(tmp_path.iterdir()) == []


def test_a_locked_database(
    folder: Path, say: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = revision(folder)
    monkeypatch.setattr(connection, "BUSY_SECONDS", 0.05)
    keeper = sqlite3.connect(folder / ".runbook" / "state.db", isolation_level=None)
    keeper.execute("BEGIN IMMEDIATE")
    one_message(say(folder, "note", "in vain"), "locked")
    assert say(folder, "status")[0] == 0, "readers never wait"
    keeper.execute("ROLLBACK")
    keeper.close()
    assert revision(folder) == before


def test_a_corrupt_database(folder: Path, say: Callable[..., Said]) -> None:
    database = folder / ".runbook" / "state.db"
    database.write_bytes(b"\xff" * 40_000)
    for words in (("status",), ("run",), ("note", "x")):
        one_message(say(folder, *words), "state.db", "doctor`")
    assert database.read_bytes() == b"\xff" * 40_000


def test_a_newer_schema(folder: Path, say: Callable[..., Said]) -> None:
    conn = sqlite3.connect(folder / ".runbook" / "state.db")
    conn.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
        " VALUES ('state', '0099_far_future', '')"
    )
    conn.commit()
    conn.close()
    for words in (("status",), ("note", "x")):
        one_message(say(folder, *words), "0099_far_future", "Update this installation")


def test_a_folder_that_is_read_only(say: Callable[..., Said]) -> None:
    with tempfile.TemporaryDirectory() as name:  # not tmp_path: nobody else gets in there
        folder = prepared(Path(name).resolve())
        before = revision(folder)
        with sealed(folder):
            one_message(say(folder, "note", "x"), str(folder / ".runbook"), "permissions")
        assert revision(folder) == before


@contextmanager
def sealed(folder: Path) -> Iterator[None]:
    """Nobody may write there."""
    every = [folder, *folder.rglob("*")]
    modes = {path: path.stat().st_mode for path in every}
    for path in every:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        with nobody():
            yield
    finally:
        for path, mode in modes.items():
            path.chmod(mode)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)


def test_a_full_disk(tmp_path: Path, say: Callable[..., Said]) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    subprocess.run(mount, check=True)
    try:
        folder = prepared(disk)
        with Service.open(folder) as service:
            before = service.snapshot()
        filler = disk / "filler"
        with pytest.raises(OSError, match="No space"):
            fill(filler)
        one_message(say(folder, "note", "y" * 50_000), "full", "Free some space")
        filler.unlink()
        with Service.open(folder) as service:
            assert service.snapshot().tasks == before.tasks
            assert service.snapshot().notes == ()
        code, _, err = say(folder, "note", "room again")
        assert (code, err) == (0, "")
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_clock_that_jumped_back(tmp_path: Path, say: Callable[..., Said]) -> None:
    """Nothing is decided by it: tasks end, no time is negative, the story keeps its order."""
    with make(tmp_path, TASKS) as service:
        service.run(only=["a"])
        jumped = datetime.now(UTC) - timedelta(hours=3)
        service.store._clock = lambda: jumped
        assert service.run().outcome == "done"
        assert states(service) == {"a": "done", "b": "done"}
        events = service.events(limit=-1)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert service.progress_is_current()
    for words in (("status",), ("results",), ("plan", "--cost"), ("doctor", "--no-hosts")):
        code, out, err = say(tmp_path, *words)
        assert (code, err) == (0, ""), words
        assert " -" not in out.replace(" - ", "").replace(" -w ", "").replace(" -\n", "\n")
