"""`dflash import`: a published drafter, z-lab's or speculators', as a folder to start from.

speculators counts taps from the embedding, so its ids are one higher than z-lab's; it keeps the
layers' shape in a block of its own and may carry the target's norm, embedding and head along. What
would be trained on wrongly without an error is refused: a reduced vocabulary, blocks that predict
one token later, unknown taps.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.config import PUBLISHED, SLIDING, DrafterConfig, read_target_config, text_part
from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json, sync_folder
from dflash.json_shape import COUNT, misfit
from dflash.progress import Progress, write_out

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from torch import Tensor

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
OF_THE_TARGET = ("embed_tokens.", "lm_head.", "verifier_")
SPECULATOR = {
    "aux_hidden_state_layer_ids?": [int], "mask_token_id?": int, "draft_vocab_size?": COUNT,
    "block_size": COUNT, "transformer_layer_config?": dict,
}  # fmt: skip
EXAMPLE = """example:
  python -m dflash import --drafter downloads/Qwen3-8B-speculator.dflash --target models/qwen3-8b \\
    --out start
  python -m dflash train --init-from start ..."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--drafter", required=True, type=Path, metavar="DIR", help="as it was published")
    add("--target", required=True, type=Path, metavar="DIR", help="the target it drafts for")
    add("--out", required=True, type=Path, metavar="DIR", help="the drafter in z-lab's layout")


def run(args: argparse.Namespace) -> int:
    adopt(args.drafter, args.target, args.out, progress=Progress(echo=sys.stderr))
    return 0


def adopt(published: Path, target: Path, out: Path, *, progress: Progress) -> DrafterConfig:
    """Write `out`, whole or not at all; a folder that is there already is not replaced."""
    import torch

    from dflash.drafter import Drafter, save_drafter

    if out.exists():
        raise DflashError(f"{out} is already there", "Choose another --out, or move it away.")
    text = text_part(read_target_config(target / CONFIG))
    hf = read_json(published / CONFIG, "drafter's config")
    kind = "speculators" if "speculators_model_type" in hf else "z-lab"
    depth = int(text["num_hidden_layers"])
    config = DrafterConfig.from_hf(
        from_speculators(hf, published, depth) if kind == "speculators" else hf
    )
    _check_target(config, text, published, target)
    drafter = Drafter(config)
    expected = {name: tuple(t.shape) for name, t in drafter.state_dict().items()}
    weights = fitting(published_weights(published), expected, published)
    drafter.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = out.with_name(f".{out.name}.part")
    shutil.rmtree(aside, ignore_errors=True)  # of a run that was killed
    save_drafter(drafter.to(torch.bfloat16), aside)
    aside.rename(out)
    sync_folder(out.parent)
    taps = ", ".join(map(str, config.target_layer_ids))
    progress.emit("done", message=f"{out} from {kind}: taps {taps}, block {config.block_size}")
    write_out({"path": str(out.absolute()), "layout": kind})
    return config


def from_speculators(hf: Mapping[str, Any], folder: Path, depth: int) -> dict[str, Any]:
    """A z-lab config.json with the same meaning."""
    if hf["speculators_model_type"] != "dflash":
        kind = hf["speculators_model_type"]
        raise InputInvalid(f"{folder} holds an {kind} speculator, not a DFlash one")
    if wrong := misfit(hf, SPECULATOR):
        raise InputInvalid(f"{folder / CONFIG} cannot be used: {wrong}", PUBLISHED)
    layer = _layer_config(hf, folder)
    taps, mask = hf.get("aux_hidden_state_layer_ids"), hf.get("mask_token_id")
    if not taps or mask is None:
        lacks = "aux_hidden_state_layer_ids" if not taps else "mask_token_id"
        raise InputInvalid(
            f"{folder / CONFIG} has no {lacks}",
            "Which layers it reads is nowhere else: ask its publisher, and add them there.",
        )
    reduced = hf.get("draft_vocab_size", layer["vocab_size"])
    if reduced != layer["vocab_size"]:
        raise InputInvalid(
            f"{folder} drafts {reduced:,} of the {layer['vocab_size']:,} tokens of its target",
            "A reduced vocabulary has a head of its own; take a drafter with the full one.",
        )
    if hf.get("sample_from_anchor"):
        raise InputInvalid(
            f"{folder} predicts from its anchor (sample_from_anchor): each slot one token later",
            "It is no DFlash drafter in this sense; training it on as one would undo it.",
        )
    sliding = SLIDING in (layer.get("layer_types") or ())
    made = {
        **layer,
        "num_target_layers": depth,
        "block_size": hf["block_size"],
        "dflash_config": {"target_layer_ids": [tap - 1 for tap in taps], "mask_token_id": mask},
    }
    if sliding and hf.get("sliding_window_non_causal"):
        made["is_causal"] = False
    return made


def _layer_config(hf: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """With the defaults that speculators leaves out."""
    from transformers import Qwen3Config

    found = hf.get("transformer_layer_config")
    if not isinstance(found, dict):
        raise InputInvalid(f"{folder / CONFIG} has no transformer_layer_config")
    return dict(Qwen3Config(**found).to_dict())


def _check_target(
    config: DrafterConfig, text: Mapping[str, Any], published: Path, target: Path
) -> None:
    pairs = {
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_target_layers,
    }
    wrong = [f"{k} {text.get(k)}, not {v}" for k, v in pairs.items() if text.get(k) != v]
    if wrong:
        raise InputInvalid(
            f"{published} was not made for {target}, which has {'; '.join(wrong)}",
            "Name the target that its model card names.",
        )


def published_weights(folder: Path) -> dict[str, Tensor]:
    """Of one file or of several; names without a leading `model.`."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if (folder / INDEX).is_file():
        index = read_json(folder / INDEX, "index of weights", {"weight_map": {"*": str}})
        files = sorted(set(index["weight_map"].values()))
    else:
        files = [WEIGHTS]
    found: dict[str, Tensor] = {}
    for name in files:
        path = folder / Path(name).name
        if not path.is_file():
            raise InputInvalid(f"there is no {path}", "Fetch the drafter's weights again.")
        try:
            found |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise InputInvalid(f"cannot read {path}: {error}", "Fetch the file again.") from error
    return {name.removeprefix("model."): tensor for name, tensor in found.items()}


def fitting(
    found: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]], folder: Path
) -> dict[str, Tensor]:
    """The drafter's own tensors, each with its shape; what is the target's is left out."""
    own = {n: t for n, t in found.items() if not n.startswith(OF_THE_TARGET)}
    lines = [
        f"{name} is {_shape(own.get(name))}, {expected.get(name, 'not there')} is needed"
        for name in sorted({*expected, *own})
        if name not in own or tuple(own[name].shape) != expected.get(name)
    ]
    if lines:
        more = f" (and {len(lines) - 3} more)" if len(lines) > 3 else ""
        raise InputInvalid(
            f"{folder}: {'; '.join(lines[:3])}{more}",
            "The config.json beside the weights is of another drafter, or of another method.",
        )
    return own


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else str(tuple(tensor.shape))
