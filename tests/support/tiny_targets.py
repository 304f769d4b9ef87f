"""Random tiny targets. Weights are scaled up: near-uniform logits would flip argmax ties."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VOCAB, HIDDEN, LAYERS = 128, 64, 8


def tiny_config(kind: str, **changes: Any) -> Any:
    import transformers

    shape: dict[str, Any] = {
        "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 96,
        "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 512, "tie_word_embeddings": True,
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "rope_theta": 1e4,
    }  # fmt: skip
    if kind == "qwen3":
        return transformers.Qwen3Config(**(shape | changes))
    if kind == "llama":
        return transformers.LlamaConfig(**(shape | changes))
    if kind == "sliding":
        types = ["sliding_attention", "full_attention"] * (LAYERS // 2)
        window = {"use_sliding_window": True, "sliding_window": 8, "layer_types": types}
        return transformers.Qwen3Config(**(shape | window | changes))
    if kind == "hybrid":
        mixed = {
            "num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16,
            "layer_types": ["linear_attention", "linear_attention", "linear_attention",
                            "full_attention"],
        }  # fmt: skip
        return transformers.Qwen3_5TextConfig(**(shape | mixed | changes))
    raise ValueError(kind)


def tiny_target(kind: str = "qwen3", *, seed: int = 0, scale: float = 6.0, **changes: Any) -> Any:
    import torch
    import transformers

    classes = {"llama": "LlamaForCausalLM", "hybrid": "Qwen3_5ForCausalLM"}
    torch.manual_seed(seed)
    config = tiny_config(kind, **changes)
    config._attn_implementation = "sdpa"
    model = getattr(transformers, classes.get(kind, "Qwen3ForCausalLM"))(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.eval().requires_grad_(False)


def save_tiny_target(path: Path, kind: str = "qwen3", **options: Any) -> Path:
    model = tiny_target(kind, **options)
    model.generation_config.eos_token_id = model.config.eos_token_id
    model.save_pretrained(path)
    return path


def tiny_drafter_config(kind: str = "qwen3", **changes: Any) -> Any:
    from dflash.config import DrafterConfig

    text = tiny_config(kind).to_dict()
    options: dict[str, Any] = {
        "num_layers": 2,
        "block_size": 4,
        "mask_token_id": 3,
        "taps": (1, 2, 3) if kind == "hybrid" else (1, 3, 6),
    }
    return DrafterConfig.from_target_config(text, **(options | changes))


def save_tiny_drafter(path: Path, kind: str = "qwen3", *, seed: int = 1, **changes: Any) -> Path:
    import torch

    from dflash.drafter import Drafter, save_drafter

    torch.manual_seed(seed)
    save_drafter(Drafter(tiny_drafter_config(kind, **changes)), path)
    return path
