"""Secrets in what a job writes: hidden before they reach the disk of the host."""

from __future__ import annotations

import base64
import itertools
import json
import os
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.supervisor import hiding
from remote.supervisor.files import publish
from remote.supervisor.hiding import Hider, forms
from tests.support.deadline import wait_for

SECRET = "canary/7f3a+9c5e=quite long"
SAYS = (
    'printf \'one %s two\' "$TOKEN"; printf %s "$TOKEN" | base64 -w0; '
    "printf '\\npart %.9s' \"$TOKEN\"; sleep 0.3; printf '%s end\\n' \"${TOKEN#canary/7f}\"; "
    "echo $TOKEN >&2"
)


@given(
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
    cuts=st.lists(st.integers(0, 120), max_size=6),
    form=st.sampled_from(sorted(forms(SECRET))),
)
def test_however_it_is_cut_nothing_of_it_comes_out(
    before: bytes, after: bytes, cuts: list[int], form: str
) -> None:
    data, hider, out = before + form.encode() + after, Hider([SECRET]), b""
    places = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        out += hider.feed(data[start:end])
    out += hider.end()
    assert len(out) == len(data)
    assert form.encode() not in out
    assert out.startswith(before[: max(0, len(before) - 40)])


def test_logs_on_the_host_hold_no_secret_and_lose_nothing_else(bench):
    bench.host.launch(bench.spec("a1", SAYS, secrets={"TOKEN": SECRET}))
    ended = bench.ended("a1")
    assert (ended.state, ended.exit_code) == ("exited", 0)
    coded = base64.b64encode(SECRET.encode()).decode()
    whole = f"one {SECRET} two{coded}\npart {SECRET} end\n"
    out = bench.text("a1")
    assert len(out) == len(whole)
    assert out.startswith(f"one {'*' * len(SECRET)} two")
    assert out.endswith(f"\npart {'*' * len(SECRET)} end\n")
    assert bench.text("a1", "err.log") == "*" * len(SECRET) + "\n"
    for path in bench.job("a1").rglob("*"):
        if path.is_file():
            assert not any(form.encode() in path.read_bytes() for form in forms(SECRET)), path


def test_keys_that_were_replaced_while_a_stream_was_silent_are_hidden_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hiding, "LOOK_S", 0.01)
    later, hider = str(tmp_path / "keys"), Hider([])
    source, end = os.pipe()
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    pump = threading.Thread(target=hiding._pump, args=(hider, source, log, later))
    pump.start()
    try:
        publish(later, json.dumps({"values": {"K": SECRET}}).encode())
        wait_for(lambda: SECRET.encode() in hider._forms, what="the first look")
        publish(later, json.dumps({"values": {"K": "the ones after"}}).encode())
        os.write(end, f"one {SECRET} two".encode())
    finally:
        os.close(end)
        pump.join()
        os.close(source)
        os.close(log)
    assert (tmp_path / "log").read_text() == f"one {'*' * len(SECRET)} two"


def test_the_death_of_the_supervisor_takes_nothing_from_the_payload(bench):
    script = (
        "echo begun; until [ -e $RUNBOOK_JOB_DIR/go ]; do sleep 0.05; done; "
        "echo $TOKEN; echo written later; touch $RUNBOOK_JOB_DIR/over"
    )
    bench.host.launch(bench.spec("a1", script, secrets={"TOKEN": SECRET}))
    bench.said("a1", "begun")
    held = (bench.job("a1") / "lock").stat().st_ino
    owner = next(
        int(line.split()[4])
        for line in Path("/proc/locks").read_text().splitlines()
        if f":{held} " in line
    )
    os.kill(owner, signal.SIGKILL)
    (bench.job("a1") / "go").touch()
    bench.said("a1", "written later")
    assert SECRET not in bench.text("a1")


def test_only_jobs_with_secrets_are_written_that_way(bench):
    bench.launch("a1", "readlink /proc/self/fd/1")
    bench.ended("a1")
    assert bench.text("a1").strip() == str(bench.job("a1") / "out.log")


@pytest.mark.parametrize("script", ["exit 3", "kill -9 $$"])
def test_the_last_words_are_there_when_the_record_is(bench, script):
    bench.host.launch(
        bench.spec("a1", f"seq 1 20000; echo last; {script}", secrets={"TOKEN": SECRET})
    )
    bench.ended("a1")
    assert bench.text("a1").endswith("20000\nlast\n")
