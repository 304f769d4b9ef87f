"""The target's forward for its taps, by kernels of our own where the architecture is known.

Plain Transformers spends a third of the time of a hybrid target outside matrix products. Here a
layer is: norm with the residual added, one product for all that reads it, the mixer, norm, MLP.
No mask is needed: rows are padded on the right and every layer looks to the left only.

What a model's layers are is recognised by name and held against its own forward once, on the first
rows it gets; a difference beyond rounding means a warning and the model's own forward for good.
"""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn import functional

from dflash.fused_layer import ops_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

FAMILIES = {
    "Qwen3_5DecoderLayer": True, "Qwen3NextDecoderLayer": True,
    "Qwen3DecoderLayer": False, "Qwen2DecoderLayer": False, "LlamaDecoderLayer": False,
}  # fmt: skip
"""Layers known here, and whether their norms store the difference of a weight from one."""
CHECK_TOKENS = 256
TOLERANCE = 0.03
"""Relative distance of what a layer adds from the model's own; rounding alone is below 0.01."""


def known(decoder: Any, *, on_cpu: bool = False) -> bool:
    """Whether every layer is of a known kind, dense, and there is a GPU with Triton."""
    weight = decoder.embed_tokens.weight
    if not on_cpu and (not weight.is_cuda or importlib.util.find_spec("triton") is None):
        return False
    if weight.dtype == torch.float32 and not on_cpu:
        return False
    return all(_layer_known(layer) for layer in decoder.layers)


def _layer_known(layer: Any) -> bool:
    mlp = getattr(layer, "mlp", None)
    parts = [getattr(mlp, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    dense = all(isinstance(p, torch.nn.Linear) and p.bias is None for p in parts)
    kind = str(getattr(layer, "block_type", getattr(layer, "layer_type", "full_attention")))
    if getattr(getattr(layer, "self_attn", None), "sliding_window", None) is not None:
        return False  # without a mask it would look too far back
    silu = "silu" in type(getattr(mlp, "act_fn", None)).__name__.lower()
    return (
        type(layer).__name__ in FAMILIES
        and dense
        and silu
        and kind in ("full_attention", "linear_attention")
    )


class _Place(NamedTuple):
    """Where the tokens of a batch stand."""

    rows: int
    positions: Tensor
    rope: Any


class FusedTarget:
    """Runs a decoder up to its last tap."""

    def __init__(self, decoder: Any, layer_ids: Sequence[int]) -> None:
        self.decoder, self.layer_ids = decoder, tuple(layer_ids)
        self.layers = list(decoder.layers[: max(layer_ids) + 1])
        self.plus_one = FAMILIES[type(self.layers[0]).__name__]
        for layer in self.layers:
            join(layer.mlp, "gate_up", ("gate_proj", "up_proj"))
            mixer = getattr(layer, "linear_attn", None)
            if mixer is not None and hasattr(mixer, "in_proj_qkv"):
                names = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
                join(mixer, "joined", names)

    @torch.no_grad()
    def __call__(self, input_ids: Tensor) -> list[Tensor]:
        """[R,S] -> the taps' outputs, each [R,S,H]."""
        embeds = self.decoder.embed_tokens(input_ids)
        place = self._place(embeds)
        x, delta = embeds.flatten(0, 1), None
        found: dict[int, Tensor] = {}
        for i, layer in enumerate(self.layers):
            x, y = self._norm(x, layer.input_layernorm, delta)
            if i - 1 in self.layer_ids:
                found[i - 1] = x
            x, delta = self._rest(layer, x, y, place)
        assert delta is not None, "there is at least one layer"
        found[len(self.layers) - 1] = x + delta
        return [found[i].view(embeds.shape) for i in self.layer_ids]

    @torch.no_grad()
    def layer(self, number: int, x: Tensor) -> Tensor:
        """One layer by itself, x [R,S,H] -> what it adds to x."""
        flat, layer = x.flatten(0, 1), self.layers[number]
        _, y = self._norm(flat, layer.input_layernorm, None)
        stream, delta = self._rest(layer, flat, y, self._place(x))
        return ((stream.float() - flat.float()) + delta.float()).view(x.shape)

    def _place(self, x: Tensor) -> _Place:
        rows, length = x.shape[:2]
        positions = torch.arange(length, device=x.device)[None].expand(rows, -1)
        # The hybrids count in three dimensions, alike for text.
        counted = positions[None].expand(3, -1, -1) if self.plus_one else positions
        return _Place(rows, positions, self.decoder.rotary_emb(x, counted))

    def _rest(self, layer: Any, x: Tensor, y: Tensor, place: _Place) -> tuple[Tensor, Tensor]:
        """From the normed input on: the stream before the MLP, and what the MLP adds."""
        mixed = self._mixer(layer, y, place)
        x, y = self._norm(x, layer.post_attention_layernorm, mixed)
        return x, self._mlp(layer.mlp, y)

    def _norm(self, x: Tensor, norm: Any, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        eps = getattr(norm, "eps", None) or norm.variance_epsilon
        made: tuple[Tensor, Tensor] = ops_for(x).rms_norm(
            x, norm.weight, eps, delta, plus_one=self.plus_one
        )
        return made

    def _mlp(self, mlp: Any, y: Tensor) -> Tensor:
        made: Tensor = ops_for(y).swiglu(y @ mlp.gate_up.t()) @ mlp.down_proj.weight.t()
        return made

    def _mixer(self, layer: Any, y: Tensor, place: _Place) -> Tensor:
        mixer = getattr(layer, "linear_attn", None)
        if mixer is not None and hasattr(mixer, "joined"):
            return self._delta_rule(mixer, y, place.rows)
        attention, y = layer.self_attn, y.view(place.rows, -1, y.shape[-1])
        if type(layer).__name__ == "Qwen3_5DecoderLayer":
            return self._gated_attention(attention, y, place.rope)
        made: Tensor = attention(
            hidden_states=y, position_embeddings=place.rope, attention_mask=None,
            position_ids=place.positions,
        )[0]  # fmt: skip
        return made.flatten(0, 1)

    def _delta_rule(self, mixer: Any, y: Tensor, rows: int) -> Tensor:
        ops, raw = ops_for(y), y @ mixer.joined.t()
        heads, width = mixer.num_v_heads, mixer.head_v_dim
        out = ops.delta_rule(
            raw, mixer.conv1d.weight.squeeze(1), mixer.A_log, mixer.dt_bias, rows=rows,
            key_heads=mixer.num_k_heads, value_heads=heads,
            key_width=mixer.head_k_dim, value_width=width,
        )  # fmt: skip
        channels = 2 * mixer.key_dim + mixer.value_dim
        gate = raw[:, channels : channels + mixer.value_dim]
        norm = mixer.norm
        gated = ops.gated_norm(out.view(-1, heads, width), gate, norm.weight, norm.variance_epsilon)
        made: Tensor = gated.flatten(1) @ mixer.out_proj.weight.t()
        return made

    def _gated_attention(self, attention: Any, y: Tensor, rope: Any) -> Tensor:
        ops, width = ops_for(y), attention.head_dim
        cos, sin = (t.expand(len(y), -1, -1).contiguous() for t in rope)
        queries = attention.q_proj(y).unflatten(-1, (-1, 2, width))
        keys, values = (
            p(y).unflatten(-1, (-1, width)) for p in (attention.k_proj, attention.v_proj)
        )
        q, k = (
            ops.rotate_part(
                x, norm.weight, cos, sin, getattr(norm, "eps", None) or norm.variance_epsilon,
                plus_one=self.plus_one,
            )
            for x, norm in ((queries[..., 0, :], attention.q_norm), (keys, attention.k_norm))
        )  # fmt: skip
        out = functional.scaled_dot_product_attention(
            q, k, values.transpose(1, 2), is_causal=True, scale=attention.scaling, enable_gqa=True
        )
        made: Tensor = attention.o_proj(ops.gate_heads(out, queries[..., 1, :]))
        return made


def join(module: Any, name: str, parts: Sequence[str]) -> None:
    """One matrix out of several that read the same input; the parts become views of it."""
    if hasattr(module, name):
        return
    layers = [getattr(module, part) for part in parts]
    whole = torch.cat([layer.weight.detach() for layer in layers])
    for layer, piece in zip(
        layers, whole.split([len(layer.weight) for layer in layers]), strict=True
    ):
        layer.weight = torch.nn.Parameter(piece, requires_grad=False)
    setattr(module, name, whole)


def agrees(fast: FusedTarget, streams: Sequence[Tensor]) -> bool:
    """Whether each layer adds what the model's own does; `streams`: its states around them.

    Layer by layer, for over sixty layers rounding alone grows to several percent.
    """
    for number, (before, after) in enumerate(itertools.pairwise(streams)):
        theirs = after.float() - before.float()
        distance = float((fast.layer(number, before) - theirs).norm() / theirs.norm())
        if not distance <= TOLERANCE:
            warnings.warn(
                f"The fast forward of this target is off by {distance:.3f} in layer {number}; "
                "using the model's own, which is slower.",
                RuntimeWarning,
                stacklevel=3,
            )
            return False
    return True
