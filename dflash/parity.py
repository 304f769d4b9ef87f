"""The numeric half of `dflash check`: one drafter, computed in every way it will be computed.

Training packs many blocks into one row under one mask; decoding drafts one block after a cached
context; the official package has its own forward. The same inputs must give the same outputs, or
training accuracy says nothing about serving.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash.attention import Layout
from dflash.decode import TargetSession
from dflash.drafter import ContextCache, Drafter

if TYPE_CHECKING:
    from dflash.target import TargetTaps

TOLERANCE = 1e-4
"""Of the largest output, in float32: packed and single blocks sum in other orders."""
OFFICIAL_SCRIPT = r"""
import json, pathlib, sys, torch
from safetensors.torch import load_file, save_file
import dflash.model as official
folder, inputs, outputs, ours = sys.argv[1:5]
where = pathlib.Path(official.__file__).resolve()
assert pathlib.Path(ours).resolve() not in where.parents, f"loaded our own package: {where}"
assert pathlib.Path(sys.prefix).resolve() in where.parents, f"not of this environment: {where}"
from importlib.metadata import version
model = official.DFlashDraftModel.from_pretrained(folder, dtype=torch.float32).eval()
given, found = load_file(inputs), {}
with torch.no_grad():
    for key in [k for k in given if k.startswith("embeds.")]:
        anchor = int(key.split(".")[1])
        embeds = given[key]
        found[f"out.{anchor}"] = model(
            position_ids=torch.arange(anchor + embeds.shape[1])[None],
            noise_embedding=embeds,
            target_hidden=given["states"][None, :anchor],
        ).contiguous()
save_file(found, outputs)
print(json.dumps({"file": str(where), "version": version("dflash"),
                  "block_size": model.block_size, "mask_token_id": model.mask_token_id,
                  "target_layer_ids": list(model.target_layer_ids)}))
"""


class Case:
    """Random tokens through the real target, some anchors, and the block embeddings there."""

    def __init__(self, drafter: Drafter, target: TargetTaps, *, length: int, seed: int) -> None:
        config = drafter.config
        rng = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, target.vocab_size, (length,), generator=rng)
        ids = self.tokens[None].to(target.device)
        self.states = target.states(ids, torch.tensor([length]))[0]  # [S, K*H]
        # The first possible anchor, two neighbours (overlapping blocks) and the last.
        self.anchors = sorted({1, length // 2, length // 2 + 1, length - 1})
        rows = torch.full((len(self.anchors), config.block_size), config.mask_token_id)
        rows[:, 0] = self.tokens[self.anchors]
        self.embeds = target.embed(rows.to(target.device), config.input_embedding_scale)  # [N,B,H]

    def packed(self, drafter: Drafter) -> torch.Tensor:
        """[N, B, H] by the training forward: all blocks in one row."""
        blocks, size, width = self.embeds.shape
        device = self.embeds.device
        anchors = torch.tensor(self.anchors, device=device).repeat_interleave(size)
        zeros = torch.zeros_like(anchors)
        context = torch.arange(len(self.tokens), device=device)
        layout = Layout(
            context_doc=torch.zeros_like(context),
            context_pos=context,
            block_doc=zeros,
            block_id=torch.arange(blocks, device=device).repeat_interleave(size),
            block_anchor=anchors,
            block_pos=anchors + torch.arange(size, device=device).repeat(blocks),
        )
        flat = self.embeds.reshape(1, blocks * size, width)
        out = drafter(flat, self.states[None], layout, "sdpa")
        return out.reshape(blocks, size, width)

    def single(self, drafter: Drafter) -> torch.Tensor:
        """[N, B, H] by the decoding forward, the context arriving in two pieces."""
        size, device, outs = self.embeds.shape[1], self.embeds.device, []
        for row, anchor in enumerate(self.anchors):
            cache, half = ContextCache(drafter.config), anchor // 2
            c = drafter.context(self.states[None, :anchor])
            positions = torch.arange(anchor, device=device)
            if half:
                drafter.extend(cache, c[:, :half], positions[:half])
            block = torch.arange(anchor, anchor + size, device=device)
            outs.append(
                drafter.draft(
                    self.embeds[row : row + 1], c[:, half:], positions[half:], block, cache=cache
                )[0]
            )
        return torch.stack(outs)


def compare(name: str, ours: torch.Tensor, theirs: torch.Tensor, **more: Any) -> dict[str, Any]:
    """A verdict with the numbers behind it."""
    scale = float(ours.abs().max())
    worst = float((ours - theirs).abs().max())
    ok = worst <= TOLERANCE * scale  # False for NaN
    return {
        "name": name,
        "verdict": "pass" if ok else "fail",
        "max_difference": worst,
        "largest_output": scale,
        "tolerance": TOLERANCE * scale,
        **more,
    }


@torch.inference_mode()
def taps_in_decoding(case: Case, target: TargetTaps) -> dict[str, Any]:
    """The states a decoder sees equal those the trainer sees, token by token."""
    session = TargetSession(target.model, taps=target.layer_ids)
    tokens = case.tokens.tolist()
    half = len(tokens) // 2
    try:
        first = session.start(tokens[:half]).states
        second = session.verify(tokens[half:]).states
    finally:
        session.close()
    assert first is not None
    assert second is not None
    return compare("taps: decoding equals training", case.states, torch.cat([first, second]))


def official(
    case: Case, ours: torch.Tensor, *, python: Path, folder: Path, drafter: Drafter
) -> dict[str, Any]:
    """The official package's forward, in its own interpreter, cut off from this one's imports."""
    from safetensors.torch import load_file, save_file

    name = "official package equals decoding"
    with tempfile.TemporaryDirectory() as scratch:
        inputs, outputs = Path(scratch) / "in.safetensors", Path(scratch) / "out.safetensors"
        tensors = {"states": case.states.float().cpu().contiguous()}
        for row, anchor in enumerate(case.anchors):
            tensors[f"embeds.{anchor}"] = case.embeds[row : row + 1].float().cpu().clone()
        save_file(tensors, inputs)
        package = Path(__file__).resolve().parent
        argv = [str(python), "-I", "-c", OFFICIAL_SCRIPT, str(folder.resolve()), str(inputs),
                str(outputs), str(package)]  # fmt: skip
        try:
            done = subprocess.run(
                argv, capture_output=True, text=True, cwd=scratch, timeout=600, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return {"name": name, "verdict": "fail", "found": str(error)}
        if done.returncode != 0 or not outputs.is_file():
            last = done.stderr.strip().splitlines()[-1:] or ["no message"]
            return {"name": name, "verdict": "fail", "found": last[0][:500]}
        read = json.loads(done.stdout.strip().splitlines()[-1])
        found = load_file(outputs)
    theirs = torch.cat([found[f"out.{anchor}"] for anchor in case.anchors])
    config = drafter.config
    wanted = [config.block_size, config.mask_token_id, list(config.target_layer_ids)]
    verdict = compare(name, ours.float().cpu(), theirs, loaded=read)
    if [read["block_size"], read["mask_token_id"], read["target_layer_ids"]] != wanted:
        verdict["verdict"] = "fail"
    return verdict
