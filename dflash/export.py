"""`dflash export`: a checkpoint becomes the folder that engines and the official package load.

The folder is written aside, with a manifest of digests, and renamed: it is there whole or not at
all. An export of the same checkpoint that is still whole is left as it is.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import __version__
from dflash.config import DrafterConfig
from dflash.engines import layout_problems
from dflash.errors import DflashError, InputInvalid
from dflash.files import manifest_of, read_json, sha256_file, sync_folder, write_json
from dflash.progress import Progress, write_out

if TYPE_CHECKING:
    import argparse

FORMAT = "dflash-export/1"
MANIFEST = "manifest.json"
FILES = {"files": [{"path": str, "size": int, "sha256": str}]}
"""What is taken of an export's manifest."""
CONFIG, WEIGHTS, PROVENANCE = "config.json", "model.safetensors", "provenance.json"
EXAMPLE = """example:
  python -m dflash export --checkpoint out/train --out out/export"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument(
        "--checkpoint", required=True, type=Path, metavar="DIR",
        help="a step folder, a training folder (its latest step is taken), or OUT/best of one",
    )  # fmt: skip
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="the export")
    parser.add_argument(
        "--dtype", choices=("bfloat16", "float32"), default="bfloat16",
        help="of the weights (default: %(default)s, what engines serve; fp16 overflows in fc)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    export(args.checkpoint, args.out, dtype=args.dtype, progress=Progress(echo=sys.stderr))
    return 0


def export(checkpoint: Path, out: Path, *, dtype: str, progress: Progress) -> dict[str, Any]:
    """Write the export; returns its manifest."""
    folder = step_folder(checkpoint)
    hf = read_json(folder / CONFIG, "checkpoint's config")
    config = read_config(hf, folder)
    source = {
        "config_sha256": sha256_file(folder / CONFIG),
        "weights_sha256": sha256_file(_weights(folder)),
        "dtype": dtype,
        "dflash-runbook": __version__,
    }
    manifest = _whole_export_of(out, source)
    if manifest is None:
        manifest = _write(folder, out, config, source, dtype)
        progress.emit("done", message=f"{out}", metrics={"step": folder.name})
    else:
        progress.emit("done", message=f"{out} is already the export of this checkpoint")
    write_out({"path": str(out), "checkpoint": str(folder), "files": len(manifest["files"])})
    return manifest


def step_folder(checkpoint: Path) -> Path:
    """The step folder itself, or the one that `best` or `latest` of a training folder names."""
    latest = checkpoint if checkpoint.name in ("best", "latest") else checkpoint / "latest"
    if (checkpoint / CONFIG).is_file() or not latest.is_file():
        if not checkpoint.is_dir():
            raise InputInvalid(f"there is no checkpoint at {checkpoint}", "Check the path.")
        return checkpoint
    name = latest.read_text(encoding="utf-8", errors="replace").strip()
    folder = latest.parent / (Path(name).name or "?")
    if not folder.is_dir():
        raise InputInvalid(
            f"{latest} names {name!r}, which is not in {latest.parent}",
            "Name a step folder, or resume the training so that it writes one.",
        )
    return folder


def read_config(hf: dict[str, Any], folder: Path) -> DrafterConfig:
    """The config, when nothing in it would have to be guessed by an engine."""
    nested = hf.get("dflash_config")
    if not isinstance(nested, dict) or not nested.get("target_layer_ids"):
        raise DflashError(
            f"{folder / CONFIG} names no taps (dflash_config.target_layer_ids)",
            "Without them engines guess other layers and raise no error; add the ids the "
            "drafter was trained with.",
        )
    if hf.get("num_target_layers") is None:
        raise DflashError(
            f"{folder / CONFIG} has no num_target_layers",
            "Add the target's number of layers at top level; the official package needs it.",
        )
    return DrafterConfig.from_hf(hf)


def _weights(folder: Path) -> Path:
    path = folder / WEIGHTS
    if not path.is_file():
        raise InputInvalid(f"there is no {path}", "Name a folder that `dflash train` wrote.")
    return path


def _whole_export_of(out: Path, source: dict[str, Any]) -> dict[str, Any] | None:
    """The manifest of what stands at `out`, when it is this very export and nothing is missing."""
    if not out.exists():
        return None
    if not (out / MANIFEST).is_file():
        if out.is_dir() and not any(out.iterdir()):
            return None
        raise DflashError(
            f"{out} exists and is no export of ours (it has no {MANIFEST})",
            "Choose another --out, or move it away.",
        )
    manifest = read_json(
        out / MANIFEST, "export's manifest", FILES, form=FORMAT,
        hint="Choose another --out, or move it away.",
    )  # fmt: skip
    same = manifest.get("source") == source and not broken_files(out, manifest)
    return manifest if same else None


def broken_files(folder: Path, manifest: dict[str, Any]) -> list[str]:
    """One sentence per file that is not what the manifest says."""
    found = []
    for entry in manifest["files"]:
        path = folder / entry["path"]
        if not path.is_file():
            found.append(f"{entry['path']} is missing")
        elif path.stat().st_size != entry["size"]:
            found.append(f"{entry['path']} has {path.stat().st_size} bytes, not {entry['size']}")
        elif sha256_file(path) != entry["sha256"]:
            found.append(f"{entry['path']} has another sha256")
    return found


def _write(
    folder: Path, out: Path, config: DrafterConfig, source: dict[str, Any], dtype: str
) -> dict[str, Any]:
    import torch

    from dflash.drafter import load_drafter, save_drafter

    drafter, _ = load_drafter(folder, torch.float32)
    for name, tensor in drafter.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            raise DflashError(
                f"{name} in {folder} holds NaN or infinity",
                "The training diverged before this step; export an earlier one.",
            )
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.part")
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
    save_drafter(drafter.to(getattr(torch, dtype)), aside)
    hf = read_json(aside / CONFIG, "config")
    hf.pop("partial_rotary_factor", None)
    if problems := layout_problems(hf):
        raise DflashError(f"the export's config would be misread: {problems[0]}")
    write_json(aside / CONFIG, hf)
    if (folder / PROVENANCE).is_file():
        shutil.copyfile(folder / PROVENANCE, aside / PROVENANCE)
    manifest = manifest_of(aside, {"format": FORMAT, "source": source})
    write_json(aside / MANIFEST, manifest)
    _put(aside, out)
    return manifest


def _put(aside: Path, out: Path) -> None:
    """Rename a folder into place; an older export steps aside first, for folders do not replace."""
    old = out.with_name(f".{out.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    aside.rename(out)
    sync_folder(out.parent)
    shutil.rmtree(old, ignore_errors=True)
