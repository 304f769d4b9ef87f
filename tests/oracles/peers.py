"""Numbers from the peers' own packages, for ours to be held to.

Run by an interpreter that has them (`python -I tests/oracles/peers.py`): prints one JSON object.
`frozen/peers.json` is its output, so that the comparison also runs where the peers are not
installed. Top level: standard library and numpy only, for our tests import the inputs from here.

`make oracles` installs the versions of `oracles.lock`.
"""

from __future__ import annotations

import json
import sys
import zlib

import numpy as np

VOCAB, HIDDEN, FFN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, BLOCK, TAPS = 128, 64, 96, 2, 4, 2, 16, 4, 3
LENGTH, MASK_ID, WINDOW = 20, 3, 6
ANCHORS = (5, 8, 9, 13, 17)
PROMPT = 5
"""Tokens before the first supervised one."""
KINDS = {
    "full": {"layer_types": ["full_attention"] * 2, "is_causal": None},
    "mixed": {"layer_types": ["sliding_attention", "full_attention"], "is_causal": None},
    "sliding": {"layer_types": ["sliding_attention"] * 2, "is_causal": None},
    "sliding_not_causal": {"layer_types": ["sliding_attention"] * 2, "is_causal": False},
    "full_causal": {"layer_types": ["full_attention"] * 2, "is_causal": True},
}
DOCUMENTS = (0,) * 11 + (1,) * 9 + (-1,) * 4
DOCUMENT_ANCHORS = (2, 6, 9, 12, 15)


def numbers(name: str, *shape: int, scale: float = 0.05) -> np.ndarray:
    """The same values in every process and version."""
    draw = np.random.default_rng(zlib.crc32(name.encode()))
    return (scale * draw.standard_normal(shape)).astype(np.float32)


def parameters() -> dict[str, np.ndarray]:
    """A drafter's weights by their published names."""
    wide, narrow = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (HIDDEN, TAPS * HIDDEN),
        "hidden_norm.weight": (HIDDEN,),
        "norm.weight": (HIDDEN,),
    }
    for i in range(LAYERS):
        shapes |= {
            f"layers.{i}.input_layernorm.weight": (HIDDEN,),
            f"layers.{i}.post_attention_layernorm.weight": (HIDDEN,),
            f"layers.{i}.self_attn.q_proj.weight": (wide, HIDDEN),
            f"layers.{i}.self_attn.k_proj.weight": (narrow, HIDDEN),
            f"layers.{i}.self_attn.v_proj.weight": (narrow, HIDDEN),
            f"layers.{i}.self_attn.o_proj.weight": (HIDDEN, wide),
            f"layers.{i}.self_attn.q_norm.weight": (HEAD_DIM,),
            f"layers.{i}.self_attn.k_norm.weight": (HEAD_DIM,),
            f"layers.{i}.mlp.gate_proj.weight": (FFN, HIDDEN),
            f"layers.{i}.mlp.up_proj.weight": (FFN, HIDDEN),
            f"layers.{i}.mlp.down_proj.weight": (HIDDEN, FFN),
        }
    return {
        name: numbers(name, *shape, scale=0.2) + (1 if len(shape) == 1 else 0)
        for name, shape in shapes.items()
    }


def states() -> np.ndarray:
    return numbers("states", LENGTH, TAPS * HIDDEN, scale=1.0)


def embedding() -> np.ndarray:
    """Also the head: tied."""
    return numbers("embedding", VOCAB, HIDDEN, scale=0.5)


def tokens() -> np.ndarray:
    return np.random.default_rng(7).integers(4, VOCAB, LENGTH)


def config(kind: str) -> dict[str, object]:
    """A z-lab config.json."""
    chosen = KINDS[kind]
    made: dict[str, object] = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-6,
        "attention_bias": False, "max_position_embeddings": 512, "rope_theta": 10000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "layer_types": chosen["layer_types"], "use_sliding_window": True,
        "sliding_window": WINDOW, "max_window_layers": LAYERS, "num_target_layers": 8,
        "block_size": BLOCK,
        "dflash_config": {
            "target_layer_ids": [1, 3, 6], "mask_token_id": MASK_ID, "block_size": BLOCK,
        },
    }  # fmt: skip
    if chosen["is_causal"] is not None:
        made["is_causal"] = chosen["is_causal"]
    return made


# ---- below: only in the peers' environment -----------------------------------------------------


def qwen_config(kind: str) -> object:
    from transformers import Qwen3Config

    values = config(kind)
    own = {key: values.pop(key) for key in ("num_target_layers", "block_size", "dflash_config")}
    causal = values.pop("is_causal", None)
    made = Qwen3Config(**values)
    for key, value in own.items():
        setattr(made, key, value)
    if causal is not None:
        made.is_causal = causal
    made._attn_implementation = "sdpa"
    return made


def official_outputs(kind: str) -> list[list[list[float]]]:
    """z-lab's forward of the block after each anchor."""
    import torch
    from dflash.model import DFlashDraftModel

    drafter = _filled(DFlashDraftModel(qwen_config(kind)))
    made = []
    for a in ANCHORS:
        ids = [int(tokens()[a])] + [MASK_ID] * (BLOCK - 1)
        with torch.no_grad():
            out = drafter(
                position_ids=torch.arange(a + BLOCK)[None],
                noise_embedding=torch.from_numpy(embedding())[torch.tensor(ids)][None],
                target_hidden=torch.from_numpy(states()[:a])[None],
            )
        made.append(out[0].tolist())
    return made


def _filled(model: object) -> object:
    import torch

    weights = {name: torch.from_numpy(value) for name, value in parameters().items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)  # type: ignore[attr-defined]
    assert not missing, missing
    assert not unexpected, unexpected
    return model.eval()  # type: ignore[attr-defined]


def specforge_losses() -> dict[str, float]:
    """SpecForge's weighted mean with gamma 4, and its D-PACE sum for one row."""
    import torch
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel

    made = {}
    for kind in ("dflash", "dpace"):
        embed = torch.nn.Embedding(VOCAB, HIDDEN)
        head = torch.nn.Linear(HIDDEN, VOCAB, bias=False)
        with torch.no_grad():
            embed.weight.copy_(torch.from_numpy(embedding()))
            head.weight.copy_(torch.from_numpy(embedding()))
        trainer = OnlineDFlashModel(
            _filled(DFlashDraftModel(qwen_config("full"))), head, embed, MASK_ID, BLOCK, "sdpa",
            num_anchors=len(ANCHORS), loss_decay_gamma=4.0 if kind == "dflash" else None,
            loss_type=kind,
        )  # fmt: skip
        anchors = torch.tensor([ANCHORS])
        trainer._sample_anchor_positions = lambda *_: (anchors, torch.ones_like(anchors).bool())  # noqa: B023
        mask = torch.ones(1, LENGTH)
        mask[:, :PROMPT] = 0
        result = trainer(
            input_ids=torch.from_numpy(tokens())[None],
            hidden_states=torch.from_numpy(states())[None],
            loss_mask=mask,
        )
        made[kind] = float(result[0] if isinstance(result, tuple) else result)
    return made


def block_logits() -> np.ndarray:
    """[N*B, V] of a drafter, for losses that are given logits."""
    return numbers("block logits", len(ANCHORS) * BLOCK, VOCAB, scale=2.0)


def speculators_losses() -> dict[str, float]:
    """Its default, cross entropy to the target's choice under D-PACE; and under decay, gamma 4."""
    import torch
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash.metrics import compute_metrics

    place = np.array(ANCHORS)[:, None] + np.arange(BLOCK)
    inside = (place < LENGTH) & (np.arange(BLOCK) > 0)
    chosen = tokens()[np.minimum(place, LENGTH - 1)].reshape(-1)
    made = {}
    for kind in ("dpace", "fixed-exp-decay"):
        loss, _ = compute_metrics(
            torch.from_numpy(block_logits())[None],
            torch.nn.functional.one_hot(torch.from_numpy(chosen), VOCAB).float()[None],
            torch.from_numpy(inside.reshape(1, -1).astype(np.float32)),
            block_size=BLOCK,
            gamma=4.0,
            loss_config=resolve_loss_config("ce", "eager"),
            per_position_loss_weight=kind,
        )
        made[kind] = float(loss)
    return made


def specforge_mask(window: int | None) -> list[list[int]]:
    import torch
    from specforge.algorithms.common.dflash_family_model import create_dflash_sdpa_mask

    anchors = torch.tensor([ANCHORS])
    mask = create_dflash_sdpa_mask(
        anchors, torch.ones_like(anchors).bool(), LENGTH, BLOCK, "cpu", sliding_window=window
    )
    return mask[0, 0].int().tolist()


def speculators_mask() -> list[list[int]]:
    """Several documents in a row, padding at the end, full attention."""
    import torch
    from speculators.models.dflash.attention import create_anchor_block_mask_mod
    from torch.nn.attention.flex_attention import create_mask

    mod, queries, keys = create_anchor_block_mask_mod(
        torch.tensor(DOCUMENTS), len(DOCUMENTS), torch.tensor(DOCUMENT_ANCHORS), BLOCK
    )
    return create_mask(mod, 1, 1, queries, keys, device="cpu")[0, 0].int().tolist()


def rounded(value: object) -> object:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, list):
        return [rounded(entry) for entry in value]
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return value


def main() -> None:
    import dflash

    assert "site-packages" in (dflash.__file__ or ""), f"this is not z-lab's dflash: {dflash}"
    made = {
        "official": {kind: official_outputs(kind) for kind in KINDS},
        "specforge_losses": specforge_losses(),
        "speculators_losses": speculators_losses(),
        "specforge_masks": {"full": specforge_mask(None), "sliding": specforge_mask(WINDOW)},
        "speculators_mask": speculators_mask(),
    }
    json.dump(rounded(made), sys.stdout)


if __name__ == "__main__":
    main()
