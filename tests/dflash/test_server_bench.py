"""`dflash bench` on stand-ins: the fastest that can be trusted wins, what was measured is kept."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dflash.bench_report import summary
from tests.support import fake_sglang
from tests.support.deadline import wait_for
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]


class Tried:
    """Variants of one program, each with a port of its own by which it is told how to behave."""

    def __init__(self, folder: Path, names: str) -> None:
        self.folder, self.venv = folder, folder / "venv"
        fake_sglang.install(self.venv)
        self.ports = dict(zip(names.split(), free_ports(len(names.split())), strict=True))
        rows = [{"id": str(n), "messages": [{"role": "user", "content": "x"}]} for n in range(12)]
        (folder / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def words(self, *extra: str) -> list[str]:
        words = [sys.executable, "-m", "dflash", "bench", "--prompts", str(self.folder / "p.jsonl"),
                 "--out", str(self.folder / "out"), "--ready-within", "30", *extra]  # fmt: skip
        for name, port in self.ports.items():
            argv = [str(self.venv / "bin/sglang"), "serve", "--port", str(port),
                    "--served-model-name", "m", "--weight-version", "{token}"]  # fmt: skip
            value = {"name": name, "argv": argv, "url": f"http://127.0.0.1:{port}", "model": "m"}
            words += ["--variant", json.dumps(value)]
        return words

    def run(self, *extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*extra), cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
            env={**os.environ, "RUNBOOK_OUT": str(self.folder / "out.json")},
        )  # fmt: skip

    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "out/report.json").read_text())
        return found

    def seen(self) -> int:
        return sum(len(fake_sglang.requests(self.venv, port)) for port in self.ports.values())


def test_the_fastest_that_can_be_trusted_wins_and_is_kept(tmp_path: Path) -> None:
    tried = Tried(tmp_path, "plain fast wrong broken")
    fake_sglang.tell(tried.venv, tried.ports["plain"], delay=0.8)
    fake_sglang.tell(tried.venv, tried.ports["fast"], drafts=2)
    fake_sglang.tell(tried.venv, tried.ports["wrong"], ids=[9, 9])
    fake_sglang.tell(tried.venv, tried.ports["broken"], says=["RuntimeError: no memory"], exit=1)
    done = tried.run("--concurrency", "1", "--concurrency", "4")
    assert done.returncode == 0, done.stderr
    report = tried.report()
    rows = {(row["variant"], row["concurrency"]): row for row in report["rows"]}
    assert len(rows) == 8
    assert report["best"]["variant"] == "fast"
    assert rows["plain", 1]["tok_s"] < rows["plain", 4]["tok_s"]
    assert rows["fast", 4]["accept_length"] == 2.0, "by what was counted, not by an idle gauge"
    assert "accept_length" not in rows["plain", 4], "its gauge says 0, as there are no drafts"
    told = (tmp_path / "out/report.txt").read_text()
    assert [line.split()[5] for line in told.splitlines()[1:5]] == ["-", "-", "2.00", "2.00"], told
    assert "texts alone are the first variant's in 0% only" in rows["wrong", 4]["problem"]
    assert "RuntimeError: no memory" in rows["broken", 1]["problem"]
    out = json.loads((tmp_path / "out.json").read_text())
    assert out["decision"].startswith("servers run as `fast` with ")
    assert "no choice: broken, wrong" in out["decision"]

    before = tried.seen()
    again = tried.run("--concurrency", "4", "--concurrency", "1")
    assert again.returncode == 0, again.stderr
    assert tried.seen() == before, "what was measured is not measured again"
    assert tried.report()["best"] == report["best"]


def test_nothing_sound_is_a_failed_gate(tmp_path: Path) -> None:
    tried = Tried(tmp_path, "broken")
    fake_sglang.tell(tried.venv, tried.ports["broken"], says=["RuntimeError: no memory"], exit=1)
    done = tried.run("--concurrency", "1")
    assert done.returncode == 4
    assert "no variant served well enough" in done.stderr
    assert "RuntimeError: no memory" in done.stderr


def test_a_stopped_bench_leaves_no_server(tmp_path: Path) -> None:
    tried = Tried(tmp_path, "slow")
    port = tried.ports["slow"]
    fake_sglang.tell(tried.venv, port, slow=True)
    process = subprocess.Popen(tried.words("--concurrency", "2"), cwd=ROOT, stderr=subprocess.PIPE)
    wait_for(lambda: any("POST" in line for line in fake_sglang.requests(tried.venv, port)),
             limit_s=60, what="the first request")  # fmt: skip
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 75, err
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--variant", "{}"], "--variant {} is none"),
        (["--concurrency", "0"], "start at 1"),
        (["--limit", "0"], "start at 1"),
        (["--top-p", "2"], "--top-p is 2"),
        (["--ready-within", "-1"], "--ready-within is -1"),
    ],
)
def test_wrong_input_is_told(tmp_path: Path, words: list[str], said: str) -> None:
    done = Tried(tmp_path, "one").run("--concurrency", "1", *words)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    tried = Tried(tmp_path, "one")
    with socket.socket() as other:
        other.bind(("127.0.0.1", tried.ports["one"]))
        other.listen()
        done = tried.run("--concurrency", "1")
    assert done.returncode == 4
    assert f"port {tried.ports['one']} is taken" in done.stderr


def test_the_rate_counts_while_all_places_are_taken() -> None:
    # Three at a time for 10 s, then one long answer alone for 90 s.
    answers = [(0.0, 10.0, 100, "stop"), (0.0, 10.0, 100, "stop"), (0.0, 100.0, 1000, "length")]
    row = summary(answers, [], full_s=50.0)
    assert row["tok_s"] == pytest.approx((200 + 500) / 50)
    assert row["tok_s_whole"] == pytest.approx(12.0)
    assert row["cut_off"] == pytest.approx(1 / 3, abs=0.001)
