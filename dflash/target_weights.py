"""Single tensors out of a target's folder, without loading the model.

A drafter rank needs the target's embedding and head and nothing else: 2.5 of 54 GB at 27B.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.nn import functional

from dflash.config import read_target_config
from dflash.errors import InputInvalid
from dflash.files import read_json

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dflash.random_target import RandomWeights

PREFIXES = ("model.language_model.", "language_model.model.", "model.", "")
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
WEIGHT_MAP = {"weight_map": {"*": str}}


class TargetWeights:
    """Tensors by their name inside the decoder, wherever a multimodal model nests it."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.config = read_target_config(self.folder / "config.json")
        self._files = self._find_files()

    def _find_files(self) -> dict[str, str]:
        if (self.folder / INDEX).is_file():
            found = read_json(self.folder / INDEX, "index of weights", WEIGHT_MAP)["weight_map"]
            lacks = [name for name in sorted({*found.values()}) if not self._has(name)]
            if lacks or not found:
                raise InputInvalid(
                    f"{self.folder} is not whole: of its files of weights {len(lacks)} are missing"
                    f"{', ' if lacks else ''}{', '.join(lacks[:3])}.",
                    "Fetch it again.",
                )
            return found
        if not (self.folder / SINGLE).is_file():
            raise InputInvalid(
                f"{self.folder} has neither {INDEX} nor {SINGLE}.",
                "The target must be a local folder with safetensors weights.",
            )
        with _opened(self.folder / SINGLE) as opened:
            return dict.fromkeys(opened.keys(), SINGLE)

    def _has(self, name: str) -> bool:
        return (self.folder / name).is_file()

    def find(self, name: str) -> Tensor | None:
        full = next((p + name for p in PREFIXES if p + name in self._files), None)
        if full is None:
            return None
        with _opened(self.folder / self._files[full]) as opened:
            found: Tensor = opened.get_tensor(full)
        return found

    def get(self, name: str) -> Tensor:
        found = self.find(name)
        if found is None:
            raise InputInvalid(f"{self.folder} has no tensor {name}.", "Is the target whole?")
        return found


def _opened(path: Path) -> Any:
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise InputInvalid(f"Cannot read {path}: {error}", "Fetch the file again.") from error


class TargetEnds:
    """Embedding and head of a target, for a rank that does not run it."""

    def __init__(
        self, weights: TargetWeights | RandomWeights, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self._embedding = weights.get("embed_tokens.weight").to(device=device, dtype=dtype)
        # A tied head has no tensor of its own; taking a random one would train on noise.
        own = weights.find("lm_head.weight")
        tied = weights.config.get("tie_word_embeddings", own is None)
        self._head = self._embedding if own is None or tied else own.to(device=device, dtype=dtype)
        bias = weights.find("lm_head.bias")
        self.head_bias = None if bias is None else bias.to(device=device, dtype=dtype)

    def embed(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        rows = functional.embedding(ids, self._embedding)
        return rows if scale == 1.0 else rows * scale

    @property
    def head_weight(self) -> Tensor:
        return self._head

    def head(self, h: Tensor) -> Tensor:
        return functional.linear(h, self._head, self.head_bias)
