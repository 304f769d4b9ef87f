"""OUT/train.json: what became of a run. It tells that one is over, and whether all was uploaded.

No torch here. The checkpoints decide where a run goes on; without this file, or with a broken one,
its last step is only summed up and uploaded once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import fingerprints
from dflash.errors import InputInvalid
from dflash.files import read_json
from dflash.s3 import KeysExpired
from dflash.train_config import contract_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dflash.train_config import TrainConfig

SUMMARY = "train.json"
SHAPE = {
    "checkpoint": str, "data": str, "ended": str, "config": dict,
    "upload?": {"url?": str, "latest?": str, "problem?": str, "keys_ended?": bool},
}  # fmt: skip


def read_summary(out: Path) -> dict[str, Any]:
    """Of a run that has written one."""
    return read_json(
        out / SUMMARY, "training summary", SHAPE, hint="Remove it and run the same command again."
    )


def known_summary(out: Path, tell: Callable[[str], None]) -> dict[str, Any] | None:
    """Of an earlier run, when there is a readable one."""
    if not (out / SUMMARY).is_file():
        return None
    try:
        return read_summary(out)
    except InputInvalid as error:
        tell(f"taken for missing: {error.message}")
        return None


def is_over(summary: Mapping[str, Any], newest: Path, config: TrainConfig) -> bool:
    """Whether the run that ended with this checkpoint needs nothing more under these options."""
    if Path(summary["checkpoint"]).name != newest.name or summary["ended"] not in ("steps", "time"):
        return False
    saved, asked = summary["config"], config.to_json()
    compared = ("steps", "tokens", "epochs", "minutes", "dtype")
    unchanged = all(saved.get(name) == asked[name] for name in compared)
    unchanged = unchanged and not contract_changes(saved, config)
    return unchanged and bool(summary["data"] == fingerprints.of_data(config))


def was_sent(summary: Mapping[str, Any], url: str, checkpoint: str) -> bool:
    """Whether it tells that this checkpoint arrived there."""
    upload = summary.get("upload") or {}
    return (upload.get("url"), upload.get("latest")) == (url.rstrip("/"), checkpoint)


def require_sent(summary: dict[str, Any]) -> dict[str, Any]:
    """The summary; raises KeysExpired where nothing is missing but keys for the last upload."""
    upload = summary.get("upload") or {}
    if upload.get("keys_ended"):
        raise KeysExpired(
            f"trained, but not uploaded: {upload.get('problem')}",
            "The checkpoint is kept here; the same command with new keys sends it.",
        )
    return summary
