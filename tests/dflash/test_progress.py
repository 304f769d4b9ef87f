"""Progress lines: whole, appended, never the reason that work stops."""

from __future__ import annotations

import io
import json
import subprocess
import sys

from dflash.progress import Progress, human_line, parse_line, write_out


def test_lines_have_every_field(tmp_path):
    path = tmp_path / "deep" / "progress.jsonl"
    progress = Progress(path)
    progress.emit("phase", message="start")
    progress.emit("step", done=3, total=9, unit="rows", metrics={"tok/s": 4.5})
    first, second = map(json.loads, path.read_text().splitlines())
    assert set(first) == {"v", "kind", "done", "total", "unit", "message", "metrics", "t"}
    assert (second["done"], second["total"], second["metrics"]) == (3, 9, {"tok/s": 4.5})
    assert first["t"] <= second["t"]


def test_default_path_is_the_environment_and_none_is_silent(tmp_path, monkeypatch):
    monkeypatch.delenv("RUNBOOK_PROGRESS", raising=False)
    Progress().emit("step", done=1)
    monkeypatch.setenv("RUNBOOK_PROGRESS", str(tmp_path / "p"))
    Progress().emit("done", message="🙂")
    assert "🙂" in (tmp_path / "p").read_text()


def test_a_killed_writer_costs_its_own_line_only(tmp_path):
    path = tmp_path / "p"
    path.write_bytes(b'{"v": 1, "kind": "st')
    Progress(path).emit("step", done=1)
    torn, whole = path.read_bytes().splitlines()
    assert parse_line(torn) is None
    event = parse_line(whole)
    assert event is not None
    assert event["done"] == 1


def test_numbers_json_does_not_know_become_null(tmp_path):
    path = tmp_path / "p"
    Progress(path).emit("step", metrics={"loss": float("nan"), "all": [float("inf"), 1]})
    assert json.loads(path.read_text())["metrics"] == {"loss": None, "all": [None, 1]}


def test_full_disk_and_odd_metrics_do_not_stop_the_work(tmp_path):
    Progress(tmp_path).emit("step", done=1)  # a folder: every write fails
    Progress("/dev/full").emit("step", done=1)
    Progress(tmp_path / "p").emit("step", metrics={"x": object()})


def test_foreign_lines_are_skipped():
    for line in (b"", b"[]", b"5", b'{"v": 2}', b"Loading weights: 3%"):
        assert parse_line(line) is None


def test_human_line():
    echo = io.StringIO()
    Progress(echo=echo).emit(
        "step", done=1200, total=5000, unit="rows", metrics={"tok/s": 41.25, "servers": {}}
    )
    assert echo.getvalue() == "1,200/5,000 rows  tok/s 41.25\n"
    assert human_line({"message": "x"}) == "x"


def test_results_file_is_whole_or_absent(tmp_path, monkeypatch):
    monkeypatch.delenv("RUNBOOK_OUT", raising=False)
    assert write_out({"a": 1}) is None
    monkeypatch.setenv("RUNBOOK_OUT", str(tmp_path / "out.json"))
    write_out({"a": 1, "path": tmp_path, "loss": float("nan")})
    value = json.loads((tmp_path / "out.json").read_text())
    assert value == {"a": 1, "path": str(tmp_path), "loss": None}
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_two_processes_never_mix_their_lines(tmp_path):
    path = tmp_path / "p"
    code = (
        "import sys; from dflash.progress import Progress; p = Progress(sys.argv[1])\n"
        "for n in range(200): p.emit('step', done=n, message=sys.argv[2] * 50)"
    )
    jobs = [subprocess.Popen([sys.executable, "-c", code, path, letter]) for letter in "ab"]
    assert [job.wait(timeout=60) for job in jobs] == [0, 0]
    events = [parse_line(line) for line in path.read_bytes().splitlines()]
    assert len(events) == 400
    assert None not in events
