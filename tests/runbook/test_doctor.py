"""`runbook doctor` names what is wrong with a workspace and the next step; it changes nothing."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING

import pytest

from remote import Unreachable
from runbook.doctor import Finding, check_up
from runbook.engine import hosts
from runbook.errors import NoWorkspace
from runbook.plan import load_text
from runbook.service import Service
from state import AttemptState, TaskState
from tests.support.workspaces import HEAD, cli, make

if TYPE_CHECKING:
    from pathlib import Path

    from remote import HostTarget, Transport

TASKS = """\
  hello:
    title: Hello
    phase: one
    step: shell
    with: {argv: ["true"]}
"""


def bad(folder: Path, *, ask_hosts: bool = False) -> list[Finding]:
    found = check_up(folder, ask_hosts=ask_hosts)
    return [finding for finding in found.findings if finding.level == "problem"]


def database(folder: Path) -> Path:
    return folder / ".runbook" / "state.db"


def unbound(folder: Path) -> Service:
    """A workspace without a machine: quicker, and enough for the database."""
    runbook = load_text(HEAD + TASKS, path=str(folder / "runbook.yaml"), params={})
    return Service.create(folder, runbook, actor="tester")


def settled(folder: Path) -> Path:
    """A workspace whose database is one file, as after the last client left."""
    unbound(folder).close()
    path = database(folder)
    conn = sqlite3.connect(path)
    conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    conn.close()
    for extra in path.parent.glob("state.db-*"):
        extra.unlink()
    return path


def test_a_sound_workspace(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    told = cli(tmp_path, "doctor")
    assert told.returncode == 0, told.stdout + told.stderr
    assert "✗" not in told.stdout
    assert "✓ host      box (local) answers" in told.stdout
    answer = json.loads(cli(tmp_path, "doctor", "--json", "--no-hosts").stdout)
    assert (answer["schema"], answer["data"]["healthy"]) == (1, True)
    parts = [finding["part"] for finding in answer["data"]["findings"]]
    assert parts == ["database", "engine", "progress", "attempts", "host"]


def test_a_corrupt_database_is_named_with_the_backups_beside_it(tmp_path: Path) -> None:
    path = settled(tmp_path)
    backup = path.with_name("state.db.0001_initial.bak")
    backup.write_bytes(path.read_bytes())
    garbage = b"this is no database" * 1000
    path.write_bytes(garbage)
    told = cli(tmp_path, "doctor")
    assert told.returncode == 4, told.stderr
    assert str(path) in told.stdout
    assert "copy state.db.0001_initial.bak in its place" in told.stdout
    assert path.read_bytes() == garbage
    answer = json.loads(cli(tmp_path, "doctor", "--json").stdout)
    assert (answer["revision"], answer["data"]["healthy"]) == (None, False)
    # What it says, done.
    path.write_bytes(backup.read_bytes())
    assert bad(tmp_path) == []


def test_damaged_pages_are_found(tmp_path: Path) -> None:
    path = settled(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[8192:20480] = b"\xff" * 12288
    path.write_bytes(raw)
    (finding, *_) = bad(tmp_path)
    assert finding.part == "database"
    assert "No backup lies beside it" in finding.next
    assert path.read_bytes() == raw


def test_an_emptied_database_is_not_made_anew(tmp_path: Path) -> None:
    path = settled(tmp_path)
    path.write_bytes(b"")
    assert [finding.part for finding in bad(tmp_path)] == ["database"]
    assert path.read_bytes() == b""


def test_a_missing_database_is_told_with_its_backups(tmp_path: Path) -> None:
    path = settled(tmp_path)
    path.rename(path.with_name("state.db.0001_initial.bak"))
    (finding,) = bad(tmp_path)
    assert "state.db is missing" in finding.text
    assert "copy state.db.0001_initial.bak in its place" in finding.next
    assert not path.exists()


def test_a_database_of_a_newer_version_is_no_damage(tmp_path: Path) -> None:
    path = settled(tmp_path)
    conn = sqlite3.connect(path)
    conn.execute(
        "INSERT INTO _sqlite_migrations (migration_set, name, applied_at)"
        " SELECT migration_set, '9999_future', applied_at FROM _sqlite_migrations LIMIT 1"
    )
    conn.commit()
    conn.close()
    (finding,) = bad(tmp_path)
    assert "9999_future" in finding.text
    assert "backup" not in finding.next.lower()


def test_a_table_altered_by_hand_is_found_and_the_rest_is_still_looked_at(tmp_path: Path) -> None:
    unbound(tmp_path).close()
    conn = sqlite3.connect(database(tmp_path))
    conn.execute("UPDATE task SET state = 'done' WHERE id = 'hello'")
    conn.commit()
    conn.close()
    found = bad(tmp_path)
    assert "The task table differs from what the events tell, for hello" in found[0].text
    assert [finding.part for finding in found] == ["database", "progress"]


def test_a_word_that_no_state_has_is_no_crash(tmp_path: Path) -> None:
    unbound(tmp_path).close()
    conn = sqlite3.connect(database(tmp_path))
    conn.execute("PRAGMA ignore_check_constraints = ON")
    conn.execute("UPDATE task SET state = 'nonsense'")
    conn.commit()
    conn.close()
    told = cli(tmp_path, "doctor", "--no-hosts")
    assert told.returncode == 4, told.stdout + told.stderr
    assert "nonsense" in told.stdout


def test_progress_md_that_is_not_current(tmp_path: Path) -> None:
    unbound(tmp_path).close()
    (tmp_path / "PROGRESS.md").unlink()
    (finding,) = bad(tmp_path)
    assert finding.part == "progress"
    assert "runbook progress" in finding.next
    assert not (tmp_path / "PROGRESS.md").exists()
    with Service.open(tmp_path) as service:
        service.write_progress()
    assert bad(tmp_path) == []


def test_who_advances_the_graph_and_who_died(tmp_path: Path) -> None:
    with unbound(tmp_path) as service:
        service.store.acquire("engine", "somebody (pid 1)")
        said = [f.text for f in check_up(tmp_path, ask_hosts=False).findings]
        assert "somebody (pid 1) advances the graph" in said
    # Closed without a release, as a killed process leaves it.
    found = check_up(tmp_path, ask_hosts=False)
    (note,) = [f for f in found.findings if f.part == "engine"]
    assert (note.level, "died without a word" in note.text) == ("note", True)
    assert "takes over" in note.next


@pytest.mark.parametrize("survivors", [False, True])
def test_an_attempt_that_nobody_looks_after(tmp_path: Path, survivors: bool) -> None:
    with make(tmp_path, TASKS) as service:
        with service.store.write() as tx:
            attempt = tx.create_attempt("hello", host="box", epoch=None)
            tx.move_task("hello", TaskState.ACTIVE, expect={TaskState.READY})
            tx.move_attempt(attempt.id, AttemptState.RUNNING, expect={attempt.state})
        assert [f.part for f in bad(tmp_path)] == ["progress"]  # with its task: no orphan
        with service.store.write() as tx:
            if survivors:
                tx.move_attempt(attempt.id, AttemptState.STOPPING, expect={AttemptState.RUNNING})
                tx.move_attempt(
                    attempt.id, AttemptState.STOP_INCOMPLETE, expect={AttemptState.STOPPING}
                )
            tx.move_task("hello", TaskState.ATTENTION, expect={TaskState.ACTIVE})
        service.write_progress()
        (finding,) = bad(tmp_path)
        assert finding.part == "attempts"
        assert f"runbook {'supersede' if survivors else 'stop'} hello" in finding.next


def test_silent_and_rebooted_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with make(tmp_path, TASKS) as service:
        with service.store.write() as tx:
            tx.seen_host("box", epoch="another boot", facts=None)
        service.write_progress()
        (finding,) = bad(tmp_path, ask_hosts=True)
        assert (finding.part, "rebooted" in finding.text) == ("host", True)
        with service.store.write() as tx:
            tx.set_unreachable("box", True)
        service.write_progress()
        (finding,) = bad(tmp_path)
        assert "has not answered since" in finding.text

        def silent(_target: HostTarget) -> Transport:
            raise Unreachable("no route")

        monkeypatch.setattr(hosts, "open_transport", silent)
        revision = service.store.revision()
        (finding,) = bad(tmp_path, ask_hosts=True)
        assert "does not answer" in finding.text
        assert "no route" in finding.text
        assert finding.next
        assert service.store.revision() == revision


def test_a_rental_that_ended_is_told(tmp_path: Path) -> None:
    make(tmp_path, TASKS).close()
    said = cli(tmp_path, "host", "rent", "box", "--ends-at", "2026-01-01T00:00:00Z")
    assert "warning: that time is past: nothing starts on box unasked" in said.stdout
    (finding,) = bad(tmp_path, ask_hosts=True)
    assert "the rental of box ended at 2026-01-01" in finding.text
    assert "runbook host rent box --ends-at TIME" in finding.next
    status = cli(tmp_path, "run", "--until", "hello")
    assert "over budget" not in status.stdout + status.stderr
    assert "rental ended: that of box, at 2026-01-01 00:00Z" in cli(tmp_path, "status").stdout


def test_a_role_without_a_machine_is_a_note(tmp_path: Path) -> None:
    unbound(tmp_path).close()
    found = check_up(tmp_path)
    (note,) = [finding for finding in found.findings if finding.part == "host"]
    assert (note.level, found.healthy) == ("note", True)
    assert "runbook host bind box local" in note.next


def test_no_workspace_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoWorkspace):
        check_up(tmp_path)
    told = cli(tmp_path, "doctor", "--frob")
    assert (told.returncode, "--frob" in told.stderr) == (2, True)
