"""Keeping results when the disk fills, the process is killed, or a copy was damaged."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from runbook.steps.artifact import Artifact, ArtifactArgs
from runbook.steps.base import Outcome, StepContext, parse_args

REPOSITORY = Path(__file__).parents[3]

DELIVER = """
import json, resource, signal, sys
from pathlib import Path
from runbook.steps.artifact import Artifact, ArtifactArgs
from runbook.steps.base import StepContext, parse_args
raw, limit, dies = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "dies"
if dies:  # and does not get an error: the kernel ends it in the write that goes too far
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
ctx = StepContext(host=None, host_name="box", root="/", work="/", workspace=Path("/"), task_id="t",
                  facts={}, ship=str, stop_task=None, outs={}, log=lambda text: None)
plan = Artifact().plan(parse_args(ArtifactArgs, raw), ctx)
print("copying", flush=True)
outcome = plan.run(ctx)
print(json.dumps([outcome.ok, outcome.message]))
"""


def raw_args(tmp_path: Path) -> dict[str, object]:
    return {
        "store": f"file://{tmp_path}/store",
        "files": [{"path": str(tmp_path / "results"), "name": "r"}],
    }


def deliver(tmp_path: Path) -> Outcome:
    context = StepContext(
        host=None,
        host_name="box",
        root="/",
        work="/",
        workspace=tmp_path,
        task_id="t",
        facts={},
        ship=str,
        stop_task=lambda task: None,  # type: ignore[arg-type, return-value]
        outs={},
        log=lambda text: None,
    )
    plan = Artifact().plan(parse_args(ArtifactArgs, raw_args(tmp_path)), context)
    assert plan.run is not None
    return plan.run(context)


def start(tmp_path: Path, *, limit: int = 0, then: str = "goes on") -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", DELIVER, json.dumps(raw_args(tmp_path)), str(limit), then]
    return subprocess.Popen(argv, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)


def files_in(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_full_disk_keeps_nothing_half_written(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "a").write_bytes(b"small")
    (results / "big").write_bytes(b"x" * 100_000)
    done = start(tmp_path, limit=50_000)
    ok, message = json.loads(done.communicate(timeout=60)[0].splitlines()[-1])
    assert not ok
    assert "nothing half-written was kept" in message
    assert files_in(tmp_path / "store") == ["r/a"]
    assert deliver(tmp_path).ok, "it goes on once there is room"
    assert files_in(tmp_path / "store") == ["manifest.json", "r/a", "r/big"]


def test_killed_while_copying(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "weights").write_bytes(b"x" * 100_000)
    killed = start(tmp_path, limit=50_000, then="dies")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGXFSZ
    (torn,) = (tmp_path / "store").rglob(".weights.*.part")
    assert torn.stat().st_size == 50_000
    assert files_in(tmp_path / "store") == [torn.relative_to(tmp_path / "store").as_posix()]
    (results / "weights").write_bytes(b"now small")
    assert deliver(tmp_path).ok
    assert files_in(tmp_path / "store") == ["manifest.json", "r/weights"], "the torn copy is gone"


def test_again_it_only_reads(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "a").write_bytes(b"content")
    assert deliver(tmp_path).ok
    kept = tmp_path / "store" / "r" / "a"
    before = kept.stat()
    assert deliver(tmp_path).ok
    assert kept.stat().st_ino == before.st_ino


def test_a_damaged_copy_is_replaced(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    (results / "a").write_bytes(b"content")
    assert deliver(tmp_path).ok
    kept = tmp_path / "store" / "r" / "a"
    kept.write_bytes(b"CONTENT")
    assert deliver(tmp_path).ok
    assert kept.read_bytes() == b"content"


def test_odd_names(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    for name in ("with space", "ü", "[x]*", "a#b%20"):
        (results / name).write_bytes(name.encode())
    outcome = deliver(tmp_path)
    assert outcome.ok, outcome.message
    listed = json.loads((tmp_path / "store" / "manifest.json").read_text())["files"]
    assert {one["path"] for one in listed} == {f"r/{p.name}" for p in results.iterdir()}
