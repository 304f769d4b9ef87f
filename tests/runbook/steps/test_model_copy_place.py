"""A copy in memory that a restart took is noticed, although the one on disk is whole."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote import Host, JobSpec, LocalTransport
from runbook.bundle import bundle_files
from runbook.steps import STEP_TYPES
from runbook.steps.base import StepContext
from tests.support.deadline import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def memory() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="runbook-test-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("use_shm", [True, False])
def test_the_place_is_remembered(tmp_path: Path, memory: Path, use_shm: bool) -> None:
    source, shm = tmp_path / "models" / "m", memory / "m"
    source.mkdir(parents=True)
    (source / "config.json").write_text("{}")
    (source / "model.safetensors").write_bytes(b"w" * 1000)
    host = Host(LocalTransport(), root=str(tmp_path / "root"), workspace_id="w")
    context = StepContext(
        host=host,
        host_name="box",
        root=str(tmp_path / "root"),
        work=str(tmp_path),
        workspace=tmp_path,
        task_id="model",
        facts={},
        ship=lambda name: host.ship(bundle_files(name), name=name),
        stop_task=lambda task: None,  # type: ignore[arg-type, return-value]
        outs={},
        log=lambda text: None,
    )
    disk = tmp_path / "disk" / "m"
    raw = {"source": str(source), "shm": str(shm), "disk": str(disk), "use_shm": use_shm,
           "headroom": 0}  # fmt: skip
    plan = STEP_TYPES["model_copy"].plan_raw(raw, context)
    assert plan.job is not None
    job = plan.job
    host.launch(
        JobSpec(attempt="a1", task="model", generation=1, argv=job.argv, env=job.env, cwd=job.cwd)
    )
    wait_for(lambda: host.poll(["a1"])["a1"].state == "exited", limit_s=60, what="the copy")
    assert host.poll(["a1"])["a1"].exit_code == 0
    out = host.read_out("a1")
    assert out is not None
    chosen = Path(out["path"])
    assert chosen == (shm if use_shm else disk)
    assert [answer.verdict for answer in host.check(plan.done_when)] == ["pass"]
    shutil.rmtree(chosen)
    assert [answer.verdict for answer in host.check(plan.done_when)] == ["fail"]
