"""The frozen target: captured tap states, and its own embedding, final norm and head.

Its norm and head are used as they are, never rebuilt (Qwen3.5's norm is x*(1+w), others differ).
One sequence per row, right-padded, never packed: recurrent layers would leak one document's state
into the next.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json
from dflash.fused_target import CHECK_TOKENS, FusedTarget, agrees, known
from dflash.out_of_memory import is_out_of_memory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation=attention, local_files_only=True,
            output_loading_info=True, ignore_mismatched_sizes=True,  # refused below, by name
        )  # fmt: skip
    except Exception as error:
        if is_out_of_memory(error):
            raise
        # Of any kind: what its parts raise on a config or on files that are not what they expect.
        raise InputInvalid(
            f"{folder} does not load as a causal language model: {str(error)[:300]}",
            "It needs config.json and safetensors weights of an architecture transformers knows.",
        ) from error
    model, found = loaded
    _refuse_made_up(folder, model, found)
    return model.to(device).eval().requires_grad_(requires_grad=False)


def _refuse_made_up(folder: Path, model: Any, found: Mapping[str, Any]) -> None:
    """Weights that its files do not hold transformers draws at random, and only warns."""
    weights = {name for name, _ in model.named_parameters()}
    lacks = sorted(weights & set(found["missing_keys"]))
    lacks += [f"{name} (of another shape)" for name, *_ in sorted(found["mismatched_keys"])]
    if lacks:
        raise InputInvalid(
            f"the files of {folder} lack {len(lacks)} of its weights, first {lacks[0]}",
            "Fetch the target again; its config.json and its weights are of different models.",
        )


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
        self._fast: FusedTarget | None = None
        self._asked = False

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
        real = torch.arange(input_ids.shape[1])[None] < lengths.cpu()[:, None]  # [R,S]
        padded = not bool(real.all())
        fast = self._fast_forward(input_ids)
        found = fast(input_ids) if fast else self._by_hooks(input_ids, real.to(input_ids.device))
        states = torch.cat(found, dim=-1)
        if padded:  # zeros even where padding overflowed
            states = torch.where(real.to(states.device)[..., None], states, 0.0)
        self._check_finite(states)
        return states

    def _fast_forward(self, input_ids: Tensor) -> FusedTarget | None:
        """Our own forward of a known architecture, once it has shown the model's own taps."""
        if not self._asked:
            self._asked = True
            if known(self.decoder):
                fast = FusedTarget(self.decoder, self.layer_ids)
                self._fast = fast if self._shows(fast, input_ids[:1, :CHECK_TOKENS]) else None
        return self._fast

    def _shows(self, fast: FusedTarget, ids: Tensor) -> bool:
        every = range(max(self.layer_ids) + 1)
        real = torch.ones_like(ids, dtype=torch.bool)
        streams = [self._embedding(ids), *self._by_hooks(ids, real, every)]
        try:
            return agrees(fast, streams)
        except Exception as error:  # another version's layers: their own forward works
            if is_out_of_memory(error):  # not the layers' fault, and the slower way needs more
                raise
            warnings.warn(
                f"The fast forward does not run on this target ({type(error).__name__}: "
                f"{str(error)[:200]}); using the model's own, which is slower.",
                RuntimeWarning,
                stacklevel=2,
            )
            return False

    def _by_hooks(
        self, input_ids: Tensor, real: Tensor, layers: Sequence[int] | None = None
    ) -> list[Tensor]:
        """The model's own forward, stopped after the last tap."""
        captured: dict[int, Tensor] = {}
        layers = layers or self.layer_ids
        last = max(layers)

        def hook(layer: int, output: Any) -> None:
            captured[layer] = output[0] if isinstance(output, tuple) else output
            if layer == last:
                raise _Enough

        handles = [
            self.decoder.layers[i].register_forward_hook(
                lambda _module, _inputs, output, i=i: hook(i, output)
            )
            for i in layers
        ]
        try:
            self.decoder(input_ids=input_ids, attention_mask=real.long(), use_cache=False)
        except _Enough:
            pass
        finally:
            for handle in handles:
                handle.remove()
        return [captured[i] for i in layers]

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
