"""The frozen target: captured tap states, and its own embedding, final norm and head.

Its norm and head are used as they are, never rebuilt (Qwen3.5's norm is x*(1+w), others differ).
One sequence per row, right-padded, never packed: recurrent layers would leak one document's state
into the next.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor


class StatesNotFinite(DflashError):
    """A captured state is NaN or infinite; training on it would poison the drafter silently."""


def load_target(
    folder: Path | str,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    *,
    attention: str = "sdpa",
) -> Any:
    """The causal language model in a local folder, frozen and in evaluation mode."""
    from transformers import AutoModelForCausalLM

    folder = Path(folder)
    read_json(folder / "config.json", "target's config")  # else transformers asks the hub
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputInvalid(
            f"{folder} does not load as a causal language model: {str(error)[:300]}",
            "It needs config.json and safetensors weights of an architecture transformers knows.",
        ) from error
    return model.to(device).eval().requires_grad_(requires_grad=False)


def decoder_of(model: Any) -> Any:
    """The module with the embedding, the layers and the final norm, also of a multimodal model."""
    for path in ("model.language_model", "language_model.model", "model", "transformer"):
        module: Any = model
        for name in path.split("."):
            module = getattr(module, name, None)
        if module is not None and hasattr(module, "layers") and hasattr(module, "norm"):
            return module
    raise DflashError(
        f"{type(model).__name__} has no decoder with .layers and .norm where transformers puts it.",
        "This target's architecture is not supported.",
    )


class _Enough(Exception):
    pass


class TargetTaps:
    """The outputs of some layers of a target. Tap i = output of layer i = HF `hidden_states[i+1]`.

    By hooks, not `output_hidden_states`: that would keep every layer's output alive, and its last
    entry is already normed.
    """

    def __init__(self, model: Any, layer_ids: Sequence[int]) -> None:
        self.model = model
        self.decoder: Any = decoder_of(model)
        self.layer_ids = tuple(layer_ids)
        depth = len(self.decoder.layers)
        if not self.layer_ids or not all(0 <= i < depth for i in self.layer_ids):
            raise DflashError(
                f"The target has layers 0..{depth - 1}; taps {list(self.layer_ids)} do not fit.",
                "Use the taps stored in the drafter's config, with the target it was trained for.",
            )
        self._head: Any = model.get_output_embeddings()
        self._embedding: Any = self.decoder.embed_tokens

    @property
    def device(self) -> torch.device:
        return self._embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self._embedding.weight.dtype

    @property
    def vocab_size(self) -> int:
        return int(self._embedding.weight.shape[0])

    @property
    def width(self) -> int:
        """Features of one captured token: all taps side by side."""
        return len(self.layer_ids) * self._embedding.weight.shape[1]

    def embed(self, ids: Tensor, scale: float = 1.0) -> Tensor:
        """Raw rows: a scale the module may apply itself is carried by the drafter's config."""
        rows = functional.embedding(ids, self._embedding.weight)
        return rows if scale == 1.0 else rows * scale

    def head(self, h: Tensor) -> Tensor:
        """Logits of states that are already normed."""
        return self._head(h)

    @property
    def head_weight(self) -> Tensor:
        return self._head.weight

    @property
    def head_bias(self) -> Tensor | None:
        return getattr(self._head, "bias", None)

    def norm(self, h: Tensor) -> Tensor:
        """The target's final norm."""
        return self.decoder.norm(h)

    @torch.no_grad()
    def states(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        """Run right-padded rows [R,S] -> tap states [R,S,K*H]; padding comes back as zeros."""
        captured: dict[int, Tensor] = {}
        last = max(self.layer_ids)

        def hook(layer: int, output: Any) -> None:
            captured[layer] = output[0] if isinstance(output, tuple) else output
            if layer == last:
                raise _Enough

        steps = torch.arange(input_ids.shape[1], device=input_ids.device)
        real = steps[None] < lengths.to(input_ids.device)[:, None]  # [R,S]
        handles = [
            self.decoder.layers[i].register_forward_hook(
                lambda _module, _inputs, output, i=i: hook(i, output)
            )
            for i in self.layer_ids
        ]
        try:
            self.decoder(input_ids=input_ids, attention_mask=real.long(), use_cache=False)
        except _Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        states = torch.cat([captured[i] for i in self.layer_ids], dim=-1)
        states = torch.where(real[..., None], states, 0.0)  # zeros even where padding overflowed
        self._check_finite(states)
        return states

    def _check_finite(self, states: Tensor) -> None:
        if bool(torch.isfinite(states.sum(dtype=torch.float32))):
            return  # one reduction; a sum of finite bf16 values does not overflow fp32 here
        width = states.shape[-1] // len(self.layer_ids)
        for row, tap in _pairs(states.shape[0], len(self.layer_ids)):
            part = states[row, :, tap * width : (tap + 1) * width]
            if not bool(torch.isfinite(part).all()):
                where = int((~torch.isfinite(part)).any(-1).nonzero()[0])
                raise StatesNotFinite(
                    f"The target's layer {self.layer_ids[tap]} gives NaN or infinity in row {row} "
                    f"of the batch at token {where}.",
                    "Run the target in bfloat16 or float32 (fp16 overflows), or check its weights.",
                )


def _pairs(rows: int, taps: int) -> Iterator[tuple[int, int]]:
    return ((row, tap) for row in range(rows) for tap in range(taps))
