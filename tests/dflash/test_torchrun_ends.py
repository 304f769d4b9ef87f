"""Runs that torchrun starts, stops and starts again: by its ranks, in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import TYPE_CHECKING, Any

from dflash.ranks import TORCHRUN_GRACE
from dflash.run_record import METRICS, SUMMARY
from dflash.train_config import TrainConfig
from tests.support.ranks import in_ranks
from tests.support.s3 import s3, s3_keys, s3_server
from tests.support.tiny_runs import make_inputs, options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["s3", "s3_keys", "s3_server"]


def rank(_number: int, values: dict[str, Any], environment: Mapping[str, str]) -> int:
    from dflash.train import rank_main

    os.environ |= environment
    return rank_main(TrainConfig.from_json(values))


def stopped_twice(number: int, values: dict[str, Any], environment: Mapping[str, str]) -> int:
    """Asked to stop after the second step, once directly and once by torchrun; the upload hangs."""
    from dflash.drafter_run import DrafterRun
    from dflash.upload import Uploader

    step = DrafterRun._one_step

    def asked(run: DrafterRun) -> None:
        step(run)
        if run.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)

    def hang(_uploader: Uploader, _checkpoint: Path) -> None:
        threading.Event().wait()

    DrafterRun._one_step = asked  # type: ignore[method-assign]
    Uploader._upload = hang  # type: ignore[method-assign]
    return rank(number, values, environment)


def uploads(progress: Path) -> list[str]:
    messages = [json.loads(line)["message"] for line in progress.read_text().splitlines()]
    return [text for text in messages if "upload" in text or "fetching" in text]


def test_what_a_stop_leaves_unsent_goes_first_and_a_run_that_is_over_is_left_alone(
    s3: Any, s3_server: str, s3_keys: dict[str, str], tmp_path: Path
) -> None:
    url, out = f"s3://{s3.bucket}/a", tmp_path / "out"
    inputs = make_inputs(tmp_path / "inputs")

    def begin(work: Any, name: str, folder: Path = out) -> list[str]:
        """A start of the same command; what it tells about uploads."""
        progress, results = tmp_path / f"{name}.jsonl", tmp_path / f"{name}.json"
        values = options(inputs, folder, drafters=2, steps=4, save_every=4, upload=url,
                         endpoint=s3_server)  # fmt: skip
        environment = {
            **s3_keys, "RUNBOOK_PROGRESS": str(progress), "RUNBOOK_OUT": str(results),
            TORCHRUN_GRACE: "6",
        }  # fmt: skip
        codes = in_ranks(2, tmp_path / name, work, values, environment)
        assert set(codes) == {75 if work is stopped_twice else 0}
        assert work is stopped_twice or json.loads(results.read_text())["step"] == 4
        return uploads(progress) if progress.exists() else []

    saved, late = begin(stopped_twice, "stopped")
    assert saved.startswith("step-000002 is saved; its upload has ")
    assert late.endswith("the upload was not done in time; the same command goes on with it")
    assert "Contents" not in s3.list_objects_v2(Bucket=s3.bucket)

    assert begin(rank, "again") == [
        "step-000002 may not have been uploaded: it goes first",
        f"step-000002 is uploaded to {url}",
        f"step-000004 is uploaded to {url}",
    ]
    files = [out / name for name in (METRICS, SUMMARY, "step-000004/model.safetensors")]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in files]

    assert begin(rank, "over") == []
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in files] == before

    elsewhere = tmp_path / "elsewhere"
    assert begin(rank, "elsewhere", elsewhere)[0] == f"fetching step-000004 from {url}"
    assert (elsewhere / SUMMARY).is_file()
    assert not (elsewhere / METRICS).exists(), "nothing was trained again"
