"""Keys handed to a running job: a file for it alone, gone with it, and hidden in what it writes."""

from __future__ import annotations

import json
import os
import signal
import stat
from contextlib import suppress

import pytest

from remote import CommandFailed, RemoteError
from tests.support.deadline import wait_for

SPAN = {"RUNBOOK_KEYS_SPAN": "100 200", "AWS_SECRET_ACCESS_KEY": "the-first-secret-of-a-job"}
LATER = "a-later-secret-of-the-job"
TELLS = (
    'f="$RUNBOOK_JOB_DIR/ctl/keys"; until test -e "$f"; do sleep 0.05; done; cat "$f"; echo; '
    'echo told; until test -e "$RUNBOOK_JOB_DIR/go"; do sleep 0.05; done'
)


def hand(bench, attempt, generation=1, **more):
    given = {"since": 150.0, "end": 300.0, "generation": generation, **more}
    bench.host.hand_keys(attempt, {"AWS_SECRET_ACCESS_KEY": LATER}, **given)


def holds(bench, text):
    found = []
    for path in bench.root.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):  # gone since it was listed
            if text.encode() in path.read_bytes():
                found.append(path)
    return found


def test_from_the_launch_on_the_host_knows_until_when(bench):
    bench.host.launch(bench.spec("a1", TELLS, secrets=SPAN))
    assert bench.status("a1").keys == {"since": 100.0, "end": 200.0}
    hand(bench, "a1")
    assert bench.status("a1").keys == {"since": 150.0, "end": 300.0}
    bench.said("a1", "told")
    file = bench.job("a1") / "ctl" / "keys"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert holds(bench, LATER) == [file], "hidden in the log, though it came later"
    assert '"values": {"AWS_SECRET_ACCESS_KEY": "***' in bench.text("a1")
    (file.parent / "keys.1.ab.tmp").write_text(LATER)  # of a writer that was killed
    (bench.job("a1") / "go").touch()
    ended = bench.ended("a1")
    assert (ended.cls, ended.keys) == ("ok", None)
    wait_for(lambda: not holds(bench, LATER), what="the keys to go, after the record")


def test_a_job_that_got_none_has_none(bench):
    bench.launch("a1", "sleep 60")
    assert bench.status("a1").keys is None


def test_only_a_running_attempt_of_the_owner_takes_keys(bench):
    bench.host.launch(bench.spec("a1", "sleep 60", secrets=SPAN))
    with pytest.raises(RemoteError, match="generation"):
        hand(bench, "a1", generation=2)
    bench.host.stop("a1", grace_s=1)
    with pytest.raises(RemoteError, match="does not run"):
        hand(bench, "a1")
    with pytest.raises(RemoteError):
        hand(bench, "never-launched")
    assert not holds(bench, LATER)


@pytest.mark.parametrize("at", ["keys.before", "keys.after"])
def test_killed_while_it_hands_over_the_file_is_the_old_or_the_new(bench, at):
    bench.host.launch(bench.spec("a1", TELLS, secrets=SPAN))
    killed = bench.make_host(crash_at=at)
    with pytest.raises((CommandFailed, RemoteError)):
        killed.hand_keys("a1", {"K": "half-of-a-secret"}, since=1.0, end=2.0, generation=1)
    known = bench.status("a1").keys
    assert known == ({"since": 100.0, "end": 200.0} if at == "keys.before" else
                     {"since": 1.0, "end": 2.0})  # fmt: skip
    hand(bench, "a1")
    bench.said("a1", "told")
    assert json.loads((bench.job("a1") / "ctl/keys").read_text())["end"] == 300.0


def test_keys_of_a_job_whose_supervisor_died_go_with_its_sweep(bench):
    bench.host.launch(bench.spec("a1", TELLS, secrets=SPAN))
    hand(bench, "a1")
    started = json.loads((bench.job("a1") / "started").read_text())
    os.kill(started["supervisor"]["pid"], signal.SIGKILL)
    wait_for(lambda: bench.status("a1").state == "lost", what="the loss")
    assert holds(bench, LATER)
    bench.host.stop("a1", grace_s=1)
    assert not holds(bench, LATER)
