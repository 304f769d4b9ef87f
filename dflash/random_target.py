"""A target of random weights from its `config.json` alone: speed and memory depend on shapes only.

For calibration and benchmarks. Made on the device itself, so 27B take seconds and no download.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dflash.config import read_target_config, text_part
from dflash.errors import InputInvalid
from dflash.files import read_json
from dflash.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from torch import Tensor

SIZE = 0.02
"""Standard deviation of every matrix."""


def config_path(target: Path | str) -> Path:
    """The `config.json` that is meant: the file itself, or the one in a folder."""
    path = Path(target)
    return path / "config.json" if path.is_dir() else path


def random_target(
    target: Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    attention: str = "sdpa",
) -> Any:
    """The text model of this `config.json` with random weights, frozen, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = config_path(target)
    read_json(path, "target's config")
    torch.manual_seed(0)
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True).get_text_config()
        with torch.device(device):
            model: Any = AutoModelForCausalLM.from_config(
                config, dtype=dtype, attn_implementation=attention
            )
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise InputInvalid(
            f"{path} makes no causal language model: {str(error)[:300]}",
            "It needs the config.json of an architecture that transformers knows.",
        ) from error
    return model.eval().requires_grad_(requires_grad=False)


class RandomWeights:
    """Stands in for `TargetWeights`: embedding and head by shape, nothing else."""

    def __init__(self, target: Path | str) -> None:
        self.folder = Path(target)
        self.config = read_target_config(Path(target))

    def find(self, name: str) -> Tensor | None:
        """Random rows for the embedding and, where it is not tied, the head."""
        text = text_part(self.config)
        tied = text.get("tie_word_embeddings", self.config.get("tie_word_embeddings", False))
        if name != "embed_tokens.weight" and (name != "lm_head.weight" or tied):
            return None
        rows, width = int(text["vocab_size"]), int(text["hidden_size"])
        draw = torch.Generator().manual_seed(len(name))
        some = torch.empty(min(rows, 4096), width).normal_(0, SIZE, generator=draw).bfloat16()
        return some[torch.arange(rows) % len(some)]  # drawing every row would take half a minute

    def get(self, name: str) -> Tensor:
        found = self.find(name)
        if found is None:
            raise InputInvalid(f"A random target has no tensor {name}.")
        return found
