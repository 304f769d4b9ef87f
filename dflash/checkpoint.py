"""Checkpoints of a run: a folder that is complete exactly when it has its name.

    OUT/step-000120/{model.safetensors, config.json, training_state.pt, provenance.json}
    OUT/latest                                  the name of the newest one

Written aside, fsynced, renamed. After a kill or a full disk the previous checkpoint is untouched
and what was begun is removed by the next run.
"""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from typing import TYPE_CHECKING, Any

import torch

from dflash.drafter import save_drafter
from dflash.errors import DflashError
from dflash.files import sync_folder, write_aside, write_json, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from dflash.drafter import Drafter

STATE, PROVENANCE, LATEST = "training_state.pt", "provenance.json", "latest"
PARTIAL = ".partial-"


def save_checkpoint(
    out: Path,
    step: int,
    drafter: Drafter,
    state: dict[str, Any],
    *,
    provenance: dict[str, Any],
    keep: int,
) -> Path:
    """Write OUT/step-N and point `latest` at it; afterwards drop all but the newest `keep`."""
    final = out / f"step-{step:06d}"
    if not final.exists():  # a kill after the rename: the same step, already whole
        aside = out / f"{PARTIAL}{final.name}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            save_drafter(drafter, aside)
            with write_aside(aside / STATE) as handle:
                torch.save(state, handle)
            write_json(aside / PROVENANCE, provenance)
            aside.rename(final)
        except OSError as error:
            shutil.rmtree(aside, ignore_errors=True)
            raise DflashError(
                f"Cannot save {final}: {error}.",
                "The previous checkpoint is whole. Free space and run the same command again.",
            ) from error
        sync_folder(out)
    write_text(out / LATEST, final.name + "\n")
    for old in checkpoints(out)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoints(out: Path) -> list[Path]:
    """Complete ones, oldest first."""
    return sorted(path for path in out.glob("step-*") if path.is_dir())


def latest_checkpoint(out: Path) -> Path | None:
    """The newest complete one. The folders decide: a kill may come between them and `latest`."""
    found = checkpoints(out)
    return found[-1] if found else None


def remove_partial(out: Path) -> None:
    for path in out.glob(f"{PARTIAL}*"):
        shutil.rmtree(path, ignore_errors=True)


def load_state(folder: Path) -> dict[str, Any]:
    """The training state; never unpickles anything but tensors and plain values."""
    try:
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, EOFError, ValueError) as error:
        raise DflashError(
            f"{folder / STATE} cannot be read: {str(error)[:200]}",
            f"Remove {folder} to resume from the one before it.",
        ) from error
    return dict(state)


def provenance_of(config: dict[str, Any]) -> dict[str, Any]:
    """What someone needs to know to make this checkpoint again."""
    return {
        "argv": sys.argv[1:],
        "config": config,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
        },
        "machine": platform.machine(),
    }
