"""One training step of SpecForge 0.2 and of speculators 0.9 at the same shapes.

Both run as their own trainers run them: SpecForge with bf16 weights, fp32 masters and its own
optimiser; speculators with fp32 weights under autocast, its whole forward compiled, AdamW. Both
with hard labels weighed by decay, flex attention, four sliding layers and a full one.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tests.benchmarks.shapes import (
    BLOCK,
    DOCUMENTS,
    LAYERS,
    LENGTH,
    MASK,
    TAPS,
    TARGET,
    WINDOW,
    RandomSet,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = ["sliding_attention"] * (LAYERS - 1) + ["full_attention"]


def _qwen_config(**changes: Any) -> Any:
    from transformers import Qwen3Config

    shape = {key: value for key, value in TARGET.items() if key != "model_type"}
    shape |= {
        "num_hidden_layers": LAYERS, "layer_types": KINDS, "use_sliding_window": True,
        "sliding_window": WINDOW, "max_window_layers": LAYERS, "tie_word_embeddings": False,
    }  # fmt: skip
    return Qwen3Config(**(shape | changes))


def _batch(data: RandomSet, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.stack([torch.from_numpy(row.input_ids).long() for row in data.rows])
    mask = torch.stack([torch.from_numpy(row.loss_mask).float() for row in data.rows])
    return ids.to(device), mask.to(device)


def specforge_step(
    data: RandomSet,
    states: torch.Tensor,
    head: torch.Tensor,
    anchors: int,
    *,
    attention: str = "flex_attention",
    **changes: Any,
) -> Callable[[], None]:
    from specforge.algorithms.common.dflash_family_model import OnlineDFlashModel
    from specforge.modeling.draft.dflash import DFlashDraftModel
    from specforge.optimizer import BF16Optimizer

    config = _qwen_config(**changes)
    config.num_target_layers, config.block_size = TARGET["num_hidden_layers"], BLOCK
    config.dflash_config = {
        "target_layer_ids": list(TAPS), "mask_token_id": MASK % config.vocab_size,
        "block_size": BLOCK,
    }  # fmt: skip
    config._attn_implementation = attention
    device = states.device
    model = DFlashDraftModel(config).to(device, torch.bfloat16)
    embed = torch.nn.Embedding(*head.shape, _weight=head, _freeze=True)
    lm_head = torch.nn.Linear(*reversed(head.shape), bias=False, device="meta")
    lm_head.weight = torch.nn.Parameter(head, requires_grad=False)
    trainer = OnlineDFlashModel(
        model, lm_head, embed, MASK % config.vocab_size, BLOCK, attention,
        num_anchors=anchors, loss_decay_gamma=7.0,
    )  # fmt: skip
    optimiser = BF16Optimizer(model, lr=1e-4, max_grad_norm=1.0, total_steps=1000)
    ids, mask = _batch(data, str(device))
    hidden = states.view(len(ids), ids.shape[1], -1)

    def step() -> None:
        result = trainer(input_ids=ids, hidden_states=hidden, loss_mask=mask)
        (result[0] if isinstance(result, tuple) else result).backward()
        optimiser.step()

    return step


def speculators_step(
    data: RandomSet,
    states: torch.Tensor,
    head: torch.Tensor,
    anchors: int,
    *,
    attention: str = "simple_flex_attention",
    masks_once: bool = False,
    **changes: Any,
) -> Callable[[], None]:
    from speculators.losses import resolve_loss_config
    from speculators.models.dflash import DFlashSpeculatorConfig
    from speculators.models.dflash.core import DFlashDraftModel

    config = _qwen_config(**changes)
    with tempfile.TemporaryDirectory() as folder:
        depth = {"num_hidden_layers": TARGET["num_hidden_layers"]}
        whole = {**TARGET, **changes, **depth, "architectures": ["Qwen3ForCausalLM"]}
        (Path(folder) / "config.json").write_text(json.dumps(whole), encoding="utf-8")
        model = DFlashDraftModel(
            DFlashSpeculatorConfig(
                **DFlashDraftModel._build_base_config_kwargs(
                    "dflash", config, verifier_name_or_path=folder, block_size=BLOCK,
                    draft_vocab_size=config.vocab_size, mask_token_id=MASK % config.vocab_size,
                    target_layer_ids=[i + 1 for i in TAPS], draft_attn_impl=attention,
                )
            )
        )  # fmt: skip
    device = states.device
    for name in ("embed_tokens", "lm_head", "verifier_lm_head"):
        getattr(model, name).weight = torch.nn.Parameter(head, requires_grad=False)
    model = model.to(device)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4, fused=device.type == "cuda")
    if masks_once:
        keep_masks(model)
    # Its fused loss does not trace under torch 2.11 ("already tracked for mutation").
    loss = resolve_loss_config("ce", "eager")
    ids, mask = _batch(data, str(device))
    length = ids.shape[1]
    where = torch.arange(len(ids), device=device).repeat_interleave(length)[None]
    place = torch.arange(length, device=device).repeat(len(ids))[None]
    last = torch.randn(1, ids.numel(), config.hidden_size, device=device, dtype=states.dtype)

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            made = model(
                hidden_states=states[None], input_ids=ids.view(1, -1), loss_mask=mask.view(1, -1),
                verifier_last_hidden_states=last, document_ids=where, position_ids=place,
                loss_config=loss, gamma=7.0, max_anchors=anchors * len(ids),
            )[1]  # fmt: skip
        optimiser.zero_grad(set_to_none=True)
        made.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def keep_masks(model: Any) -> None:
    """Anchors and masks of the first step for all, made by code that is not compiled.

    In its favour: they cost nothing then. The compiled code can take minutes to be made.
    """
    from speculators.models.dflash import core
    from torch.nn.attention.flex_attention import create_block_mask

    if model._create_mask_fn is core._compiled_create_block_mask:
        model._create_mask_fn = create_block_mask
    build, kept = model._build_attention_mask, []

    @torch.compiler.disable
    def once(*args: Any) -> Any:
        kept[:] = kept or [build(*args)]
        return kept[0]

    model._build_attention_mask = once


PEERS = {"SpecForge": specforge_step, "speculators": speculators_step}
TOKENS = DOCUMENTS * LENGTH
