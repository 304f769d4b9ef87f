"""Checkpoints of a run: a folder that is complete exactly when it has its name.

    OUT/step-000120/{model.safetensors, config.json, training_state.pt, provenance.json}
    OUT/latest                                  the name of the newest one
    OUT/best                                    of the one with the best held-out acceptance

Written aside, fsynced, renamed. After a kill or a full disk the previous checkpoint is untouched
and what was begun is removed by the next run.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
import re
import shutil
import sys
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any

import torch

from dflash.drafter import save_drafter
from dflash.errors import DflashError
from dflash.files import sync_folder, write_aside, write_json, write_text

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from dflash.drafter import Drafter

STATE, PROVENANCE, LATEST, BEST = "training_state.pt", "provenance.json", "latest", "best"
STATE_KINDS: dict[str, Any] = {
    "step": int, "tokens": int, "elapsed_s": float | int, "optimiser": dict, "rng": list,
    "scale": torch.Tensor,
}  # fmt: skip
"""What a resume takes of the training state."""
PARTIAL = ".partial-"
NAME = re.compile(r"step-\d{6,}")


def save_checkpoint(
    out: Path,
    step: int,
    drafter: Drafter,
    state: dict[str, Any],
    *,
    provenance: dict[str, Any],
    keep: int,
    held: Collection[str] = (),
) -> Path:
    """Write OUT/step-N and point `latest` at it; afterwards drop all but the newest `keep`.

    On a full disk the older ones go first, all but the newest and those `held`, and it is tried
    once more.
    """
    final = out / f"step-{step:06d}"
    if not final.exists():  # a kill after the rename: the same step, already whole
        try:
            _write(final, drafter, state, provenance)
        except (OSError, RuntimeError) as error:  # torch has its own error for a failed write
            if not _drop(out, 1, held):
                raise _cannot(final, error) from error
            try:
                _write(final, drafter, state, provenance)
            except (OSError, RuntimeError) as again:
                raise _cannot(final, again) from again
    try:
        write_text(out / LATEST, final.name + "\n")
    except OSError as error:
        raise _cannot(out / LATEST, error) from error
    _drop(out, keep, held)
    return final


def _write(
    final: Path, drafter: Drafter, state: dict[str, Any], provenance: dict[str, Any]
) -> None:
    aside = final.with_name(f"{PARTIAL}{final.name}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        save_drafter(drafter, aside)
        with write_aside(aside / STATE) as handle:
            torch.save(state, handle)
        write_json(aside / PROVENANCE, provenance)
        aside.rename(final)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    sync_folder(final.parent)


def _cannot(final: Path, error: Exception) -> DflashError:
    said = str(error).splitlines()[0][:200]
    with contextlib.suppress(OSError):  # torch hides a full disk behind words of its own
        said += f" ({shutil.disk_usage(final.parent).free / 2**30:.1f} GiB are free there)"
    return DflashError(
        f"Cannot save {final}: {said}.",
        "The previous checkpoint is whole. Free space and run the same command again.",
    )


def _drop(out: Path, keep: int, held: Collection[str]) -> int:
    """Remove all but the newest `keep`, and those held; how many went."""
    old = [path for path in checkpoints(out)[:-keep] if path.name not in held]
    for path in old:
        with contextlib.suppress(OSError):  # under its name it is whole, whenever a kill comes
            path = path.rename(out / f"{PARTIAL}{path.name}")
        shutil.rmtree(path, ignore_errors=True)
    return len(old)


def checkpoints(out: Path) -> list[Path]:
    """Complete ones, oldest first. A copy that is kept beside them by another name is none."""
    found = [path for path in out.glob("step-*") if NAME.fullmatch(path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")))


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
        # Mapped: a rank that keeps a slice of the optimiser reads no more than that.
        state = torch.load(folder / STATE, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, UnpicklingError) as error:
        raise not_resumable(folder, str(error)) from error
    if not isinstance(state, dict):
        raise not_resumable(folder, f"it holds a {type(state).__name__}")
    wrong = [name for name, kind in STATE_KINDS.items() if not isinstance(state.get(name), kind)]
    if wrong:
        raise not_resumable(folder, f"wrong or missing: {', '.join(wrong)}")
    return state


def not_resumable(folder: Path, why: str) -> DflashError:
    """Of a checkpoint whose training state is not one."""
    return DflashError(
        f"{folder / STATE} cannot be read: {why[:200]}",
        f"Remove {folder} to resume from the one before it.",
    )


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
