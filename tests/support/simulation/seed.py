"""The run of a drafter for a 27B target in figures: what its tasks take, say and leave behind.

Its only home: the runbook has parameters, and a simulated machine answers with these.
"""

from __future__ import annotations

import json
from typing import Any

from dflash.config import DrafterConfig
from dflash.plan_inputs import Work
from dflash.plan_shapes import TargetShape
from dflash.plan_storage import plan_storage
from tests.support.simulation.fleet import Task

COMPLETIONS = 902_087
SHARDS = 1_805
MEAN_TOKENS = 2_068
TOKENS = 1_866_000_000
LOSS_SHARE = 0.875
HOURS = 17.0
PILOT = 500
TAPS = (1, 16, 31, 46, 61)
QWEN27B = {
    "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408,
    "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
    "head_dim": 256, "vocab_size": 248320, "rope_parameters": {"rope_theta": 1e7},
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def storage_plan() -> dict[str, Any]:
    """What `dflash plan storage` answers for this set."""
    drafter = DrafterConfig.from_target_config(
        QWEN27B, num_layers=5, block_size=16, mask_token_id=0, taps=TAPS
    )
    work = Work(
        target=TargetShape.from_config(QWEN27B, "config.json"), drafter=drafter,
        documents=COMPLETIONS, mean_tokens=MEAN_TOKENS, anchors=512, max_length=4096,
        batch_docs=4, micro_batches=8,
    )  # fmt: skip
    return plan_storage(work).to_json()


def audit(*, rows: int = COMPLETIONS, loss_share: float = LOSS_SHARE) -> str:
    """An audit's report, judged by what the runbook asks of it."""
    return json.dumps({"passed": True, "rows": rows, "loss_share": loss_share})


def _tokenized() -> str:
    heldout = COMPLETIONS // 1000
    splits = {"train": {"rows": COMPLETIONS - heldout}, "heldout": {"rows": heldout}}
    return json.dumps({"rows": COMPLETIONS, "tokens": TOKENS, "splits": splits})


def _generated(rows: int, files: int) -> str:
    shards = [{"file": f"shard-{n:05d}.jsonl"} for n in range(files)]
    return json.dumps({"complete": True, "rows": rows, "failed": 0, "shards": shards})


def _made(rows: int, path: str) -> dict[str, Any]:
    tokens = rows * MEAN_TOKENS
    return {"path": path, "rows": rows, "tokens": tokens, "bytes": 4 * tokens, "failed": 0}


TASKS = {
    "probe": Task(hours=0.01),
    "env": Task(hours=0.2),
    "model": Task(
        hours=0.2, out={"path": "/dev/shm/runbook/Qwen3.6-27B"}, in_memory="Qwen3.6-27B.place"
    ),
    "serve": Task(service=True),
    "pilot": Task(
        hours=HOURS * PILOT / COMPLETIONS,
        out=_made(PILOT, "/work/pilot"),
        files={"pilot/manifest.json": _generated(PILOT, 1)},
    ),
    "audit-pilot": Task(files={"audit-pilot/report.json": audit(rows=PILOT)}),
    "generate": Task(
        hours=HOURS,
        out=_made(COMPLETIONS, "/work/completions"),
        files={"completions/manifest.json": _generated(COMPLETIONS, SHARDS)},
    ),
    "audit": Task(hours=0.5, files={"about/audit/report.json": audit()}),
    "tokenize": Task(hours=2, files={"tokenized/manifest.json": _tokenized()}),
    "audit-tokens": Task(hours=0.5, files={"audit-tokens/report.json": audit()}),
    "storage": Task(hours=0.01, files={"plan/storage.json": json.dumps(storage_plan())}),
    "train": Task(hours=40, out={"checkpoint": "/work/train/step-200000"}),
    "eval": Task(
        hours=1,
        files={
            "results/eval.json": json.dumps(
                {
                    "lossless": {"ok": True},
                    "comparison": {"trained_minus_untrained": {"low": 1.2}},
                }
            )
        },
    ),
    "check": Task(hours=0.1, files={"results/check.json": json.dumps({"verdict": "pass"})}),
}
"""How tasks behave, by their name or the longest beginning of it."""
