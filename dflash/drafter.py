"""The drafter, whole: Qwen3-style layers whose keys and values also come from the target's taps.

It owns no embedding and no head: both are the target's. Context tokens have no query, no residual
stream and no MLP; they enter each layer as extra keys and values, made from one shared projection
of the taps. Names and shapes are those of the published checkpoints.

Shapes: S context tokens, Q block slots (N blocks of B), H hidden, K taps, h heads, g key/value
heads, d head width.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from dflash.attention import Attention, Layout, _sdpa, visible
from dflash.config import DrafterConfig
from dflash.errors import DflashError, InputInvalid
from dflash.files import write_aside, write_json
from dflash.fused_layer import Frame, fused_works, lay_side_by_side, run_layer, run_norm
from dflash.spans import spans_by_layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

WEIGHTS, CONFIG = "model.safetensors", "config.json"
FUSED = "fused"


class RMSNorm(nn.Module):
    """Normalised in fp32, scaled in the input's type: bit for bit what the engines do."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class BlockAttention(nn.Module):
    """Attention of block slots over context and block; one K/V projection serves both."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.window, self.causal = config.window_of(layer), config.causal_of(layer)
        hidden, bias = config.hidden_size, config.attention_bias
        wide, narrow = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(hidden, wide, bias=bias)
        self.k_proj = nn.Linear(hidden, narrow, bias=bias)
        self.v_proj = nn.Linear(hidden, narrow, bias=bias)
        self.o_proj = nn.Linear(wide, hidden, bias=bias)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # [1,n,h*d] -> [1,h,n,d]

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """x [1,n,H] -> rotated keys and values [1,g,n,d]."""
        return rope.rotate(self.k_norm(self.heads(self.k_proj(x)))), self.heads(self.v_proj(x))

    def queries(self, x: Tensor, rope: Rope) -> Tensor:
        return rope.rotate(self.q_norm(self.heads(self.q_proj(x))))

    def output(self, attended: Tensor) -> Tensor:
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each on a normed copy of the residual. Context is not normed here."""

    def __init__(self, config: DrafterConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = BlockAttention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, block_rope: Rope, context: tuple[Tensor, Tensor], attend: Attend
    ) -> Tensor:
        """x [1,Q,H]; context: this layer's keys and values of the context [1,g,S,d]."""
        attention = self.self_attn
        y = self.input_layernorm(x)
        k, v = attention.keys_values(y, block_rope)
        k, v = torch.cat([context[0], k], dim=2), torch.cat([context[1], v], dim=2)
        seen = attend(attention.queries(y, block_rope), k, v, attention.window, attention.causal)
        x = x + attention.output(seen)
        return x + self.mlp(self.post_attention_layernorm(x))


class Rope:
    """Cosines and sines for given positions; the whole head is rotated, as the engines read it."""

    def __init__(self, positions: Tensor, config: DrafterConfig, dtype: torch.dtype) -> None:
        exponents = torch.arange(0, config.head_dim, 2, device=positions.device).float()
        inverse = 1.0 / config.rope_theta ** (exponents / config.head_dim)
        angles = positions.float()[:, None] * inverse  # [n, d/2]
        angles = torch.cat([angles, angles], dim=-1)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)

    def rotate(self, x: Tensor) -> Tensor:
        low, high = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-high, low], dim=-1) * self.sin


class ContextCache:
    """Per layer, keys and values of the context so far. Only verified tokens enter; none leave."""

    def __init__(self, config: DrafterConfig) -> None:
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * config.num_layers
        self.positions = torch.zeros(0, dtype=torch.long)

    def __len__(self) -> int:
        return len(self.positions)

    def append(self, layer: int, k: Tensor, v: Tensor) -> None:
        old = self.layers[layer]
        if old is not None:
            k, v = torch.cat([old[0], k], dim=2), torch.cat([old[1], v], dim=2)
        self.layers[layer] = (k, v)


class Drafter(nn.Module):
    """Drafts a block of tokens in one parallel pass from what the target has seen so far."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.fc = nn.Linear(config.context_width, config.hidden_size, bias=False)
        self.hidden_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers: Any = nn.ModuleList(Layer(config, i) for i in range(config.num_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.apply(_initialise)

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    def context(self, states: Tensor) -> Tensor:
        """Captured taps [..., K*H] -> what all layers read [..., H].

        Cast here: the target may run in fp16, where fc overflows.
        """
        return self.hidden_norm(self.fc(states.to(self.dtype)))

    def forward(
        self,
        block_embeds: Tensor,
        states: Tensor,
        layout: Layout,
        backend: str,
        *,
        rows: Tensor | None = None,
        repeated: bool = False,
    ) -> Tensor:
        """Training: all blocks of a packed row at once.

        Args:
            block_embeds: [1,Q,H].
            states: [1,S,K*H].
            layout: Where they stand.
            backend: eager, sdpa, flex, fused, or auto: fused on a GPU, SDPA elsewhere.
            rows: Which of the Q rows are wanted, ascending; all when left out.
            repeated: All slots but the first of a block have the same embedding, as in training,
                and embeddings are frozen.

        Returns:
            [1,Q,H], or the wanted rows of it, normed, ready for the head.
        """
        fused = fused_works(self)
        backend = (
            backend if backend != "auto" or not fused or states.device.type == "cpu" else FUSED
        )
        if backend == FUSED:
            if not fused:
                raise DflashError(
                    "Fused layers need bf16 or fp16 weights, Triton, a head width that is a power "
                    "of two and no biases in attention.",
                    "Leave --attention out to have the fastest backend that works.",
                )
            return self._fused(block_embeds, states, layout, rows=rows, repeated=repeated)
        attention = Attention(layout, backend=backend)

        def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None, causal: bool) -> Tensor:
            return attention(q, k, v, window=window, causal=causal)

        context_rope = Rope(layout.context_pos, self.config, self.dtype)
        block_rope = Rope(layout.block_pos, self.config, self.dtype)
        c = self.context(states)
        x = block_embeds.to(self.dtype)
        for layer in self.layers:
            x = layer(x, block_rope, layer.self_attn.keys_values(c, context_rope), attend)
        x = self.norm(x)
        return x if rows is None else x[:, rows]

    def _fused(
        self,
        block_embeds: Tensor,
        states: Tensor,
        layout: Layout,
        *,
        rows: Tensor | None,
        repeated: bool,
    ) -> Tensor:
        config, last = self.config, self.config.num_layers - 1
        spans = spans_by_layer(config, layout, rows)
        block_rope = Rope(layout.block_pos, config, self.dtype)
        context_rope = Rope(layout.context_pos, config, self.dtype)
        eps = config.rms_norm_eps
        c = run_norm(self.fc(states[0].to(self.dtype)), None, self.hidden_norm.weight, eps)
        x, delta = block_embeds[0].to(self.dtype), None
        for i, layer in enumerate(self.layers):
            lay_side_by_side(layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight)
            frame = Frame(
                block_rope=block_rope,
                context_rope=context_rope,
                eps=eps,
                head_dim=config.head_dim,
                spans=spans[i],
                rows=rows if i == last else None,
                repeated=config.block_size if repeated and i == 0 < last else 0,
            )
            x, delta = run_layer(layer, x, delta, c, frame)
        return run_norm(x, delta, self.norm.weight, eps)[None]

    def extend(self, cache: ContextCache, c: Tensor, positions: Tensor) -> None:
        """Add context [1,s,H] at these positions to the cache of every layer."""
        rope = Rope(positions, self.config, self.dtype)
        for i, layer in enumerate(self.layers):
            cache.append(i, *layer.self_attn.keys_values(c, rope))
        cache.positions = torch.cat([cache.positions.to(positions.device), positions])

    def draft(
        self,
        block_embeds: Tensor,
        c: Tensor,
        context_positions: Tensor,
        block_positions: Tensor,
        *,
        cache: ContextCache | None = None,
    ) -> Tensor:
        """Inference: one block [1,B,H] after the context -> out [1,B,H], ready for the head.

        `c` [1,S,H] is the whole context, or, with a cache, what came since the last call (perhaps
        nothing); the cache keeps it.
        """
        cache = ContextCache(self.config) if cache is None else cache
        self.extend(cache, c, context_positions)
        attend = _inference_attention(cache.positions, block_positions)
        rope = Rope(block_positions, self.config, self.dtype)
        x = block_embeds.to(self.dtype)
        for layer, context in zip(self.layers, cache.layers, strict=True):
            x = layer(x, rope, context, attend)
        return self.norm(x)


if TYPE_CHECKING:
    Attend = Callable[[Tensor, Tensor, Tensor, int | None, bool], Tensor]


def _inference_attention(context_positions: Tensor, block_positions: Tensor) -> Attend:
    """One document, one block: the same rule as in training."""
    positions = torch.cat([context_positions, block_positions])
    in_block = torch.arange(len(positions), device=positions.device) >= len(context_positions)
    block = in_block.long() - 1  # context: -1, block: 0
    here = torch.zeros_like(positions)

    def attend(q: Tensor, k: Tensor, v: Tensor, window: int | None, causal: bool) -> Tensor:
        mask = visible(
            here[:1, None],
            here[:1, None],
            block_positions[:1, None],
            block_positions[:, None],
            here[None],
            block[None],
            positions[None],
            window=window,
            causal=causal,
        )
        return _sdpa(q, k, v, mask)

    return attend


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def save_drafter(drafter: Drafter, folder: Path | str) -> None:
    """Write config.json and model.safetensors, each whole or not at all."""
    from safetensors.torch import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: t.detach().cpu().contiguous() for name, t in drafter.state_dict().items()}
    config = drafter.config.to_hf() | {"dtype": str(drafter.dtype).removeprefix("torch.")}
    with write_aside(folder / WEIGHTS) as handle:
        handle.write(save(weights, metadata={"format": "pt"}))
    write_json(folder / CONFIG, config)


def load_drafter(
    folder: Path | str, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> tuple[Drafter, DrafterConfig]:
    """Read a checkpoint of ours or z-lab's; every tensor must be there with its shape."""

    folder = Path(folder)
    config = DrafterConfig.read(folder)
    drafter = Drafter(config)
    load_weights(drafter, folder)
    return drafter.to(device=device, dtype=dtype), config


def load_weights(drafter: Drafter, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = folder / WEIGHTS
    if not path.is_file():
        raise InputInvalid(f"There is no {path}.", "Point at a folder with a drafter's weights.")
    try:
        found = {name.removeprefix("model."): t for name, t in load_file(path).items()}
    except (OSError, SafetensorError) as error:
        raise InputInvalid(f"Cannot read {path}: {error}", "Fetch the file again.") from error
    expected = {name: tuple(t.shape) for name, t in drafter.state_dict().items()}
    shapes = {name: tuple(t.shape) for name, t in found.items()}
    if shapes != expected:
        wrong = sorted(
            name for name in expected.keys() | shapes if expected.get(name) != shapes.get(name)
        )
        first = wrong[0]
        raise DflashError(
            f"{path} does not hold this drafter: {len(wrong)} tensors differ, first {first}: "
            f"expected {expected.get(first, 'none')}, found {shapes.get(first, 'none')}.",
            "The config.json beside it belongs to another drafter, or the layout is not z-lab's.",
        )
    drafter.load_state_dict(found)
