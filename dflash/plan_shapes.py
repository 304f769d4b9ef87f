"""Sizes of a target and its drafter from `config.json` alone: parameters and FLOPs; no torch.

Owns: the formulas. FLOPs count a multiplication and an addition as two, matrices and attention
only; norms, rotations and softmax are below one percent of either model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from dflash.config import FULL, SLIDING, DrafterConfig
from dflash.errors import InputInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

LINEAR = "linear_attention"
DENSE_FIELDS = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
)  # fmt: skip
LINEAR_FIELDS = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip
HYBRID_PREFIXES = ("qwen3_5", "qwen3_next")
ATTENTION_TRAINING = 3.5
"""Forward and backward attention over forward: flash attention computes the scores again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearShape:
    """The gated delta rule layers of a hybrid target."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int

    @property
    def conv_width(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def out_width(self) -> int:
        return self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetShape:
    """A dense or hybrid decoder, as far as its cost depends on it."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    layer_types: tuple[str, ...]
    gated: bool
    """The query projection also makes a gate of the attention's output (Qwen3-Next, Qwen3.5)."""
    head_norms: bool
    window: int | None
    linear: LinearShape | None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], where: str) -> Self:
        """Read a `config.json`; of a multimodal model its text part."""
        nested = config.get("text_config")
        text = nested if isinstance(nested, dict) else config
        kind = str(text.get("model_type") or config.get("model_type") or "")
        _need(text, DENSE_FIELDS, where)
        if _number(text, "num_experts", where, 0) or _number(text, "num_local_experts", where, 0):
            raise InputInvalid(
                f"{where} is a mixture of experts ({kind or 'num_experts'}), which is not planned",
                "Plans know dense models (Qwen3, Llama) and hybrids (Qwen3.5, Qwen3.6).",
            )
        hidden = _number(text, "hidden_size", where)
        heads = _number(text, "num_attention_heads", where)
        types = _layer_types(text, kind, where)
        hybrid = LINEAR in types
        return cls(
            hidden=hidden,
            intermediate=_number(text, "intermediate_size", where),
            heads=heads,
            kv_heads=_number(text, "num_key_value_heads", where, heads),
            head_dim=_number(text, "head_dim", where, hidden // heads),
            vocab=_number(text, "vocab_size", where),
            tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            layer_types=types,
            gated=bool(text.get("attn_output_gate", kind.startswith(HYBRID_PREFIXES))),
            head_norms=kind.startswith(("qwen3", "gemma3")),
            window=_number(text, "sliding_window", where) if SLIDING in types else None,
            linear=_linear(text, where) if hybrid else None,
        )

    @property
    def depth(self) -> int:
        return len(self.layer_types)

    @property
    def embedding_params(self) -> int:
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All weights of the text model; layer by layer as Transformers builds them."""
        copies = 1 if self.tied else 2
        layers = sum(self._matrices(kind) + self._small(kind) for kind in self.layer_types)
        return layers + copies * self.embedding_params + self.hidden

    def forward_flops(
        self, tokens: float, *, layers: int | None = None, head: bool = True
    ) -> float:
        """One document of `tokens`: 2 per weight and token, plus what depends on the length.

        Source: the usual 2 x parameters x tokens, without the embedding's rows, which are looked
        up. `layers` and `head=False` are what online training runs: up to the last tap, no head.
        """
        total = 2.0 * self.embedding_params * tokens if head else 0.0
        for kind, count in Counter(self.layer_types[:layers]).items():
            total += count * tokens * (2.0 * self._matrices(kind) + self._mixing(kind, tokens))
        return total

    def _matrices(self, kind: str) -> int:
        mlp = 3 * self.hidden * self.intermediate
        if kind == LINEAR and self.linear is not None:
            wide = self.linear.conv_width + 2 * self.linear.out_width + 2 * self.linear.value_heads
            return mlp + self.hidden * wide  # q, k, v; gate and output; the two gates per head
        queries = self.heads * self.head_dim * (3 if self.gated else 2)  # with the output
        return mlp + self.hidden * (queries + 2 * self.kv_heads * self.head_dim)

    def _small(self, kind: str) -> int:
        if kind == LINEAR and self.linear is not None:
            own = self.linear.conv_width * self.linear.kernel
            return 2 * self.hidden + own + 2 * self.linear.value_heads + self.linear.value_dim
        return 2 * self.hidden + (2 * self.head_dim if self.head_norms else 0)

    def _mixing(self, kind: str, tokens: float) -> float:
        """FLOPs per token that are no weight's: scores and values, or the recurrence.

        Sources: causal attention 4 x heads x width x (tokens seen); delta rule about 8 x key width
        x value width per head (read, correct, write, query), and the short convolution.
        """
        if kind == LINEAR and self.linear is not None:
            one = self.linear
            return 8.0 * one.value_heads * one.key_dim * one.value_dim + 2.0 * (
                one.kernel * one.conv_width
            )
        seen = mean_seen(tokens, self.window if kind == SLIDING else None)
        return 4.0 * self.heads * self.head_dim * seen


def mean_seen(tokens: float, window: int | None) -> float:
    """Earlier tokens that a uniformly drawn position sees: half of them, less under a window."""
    if window is None or window >= tokens:
        return tokens / 2
    return window - window * window / (2 * tokens)


def drafter_layer_parameters(drafter: DrafterConfig) -> int:
    """One layer: q, k, v, o, gate, up, down and norms. Source: tensors of the published files."""
    queries = drafter.num_heads * drafter.head_dim
    keys = drafter.num_kv_heads * drafter.head_dim
    matrices = drafter.hidden_size * (2 * queries + 2 * keys + 3 * drafter.intermediate_size)
    return matrices + 2 * drafter.hidden_size + 2 * drafter.head_dim


def drafter_parameters(drafter: DrafterConfig) -> int:
    """Layers, the projection of the taps, two norms; embedding and head are the target's."""
    fixed = drafter.context_width * drafter.hidden_size + 2 * drafter.hidden_size
    return drafter.num_layers * drafter_layer_parameters(drafter) + fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterFlops:
    """Forward and backward of one document, by part."""

    layers: float
    context: float
    attention: float
    head: float

    @property
    def total(self) -> float:
        return self.layers + self.context + self.attention + self.head


def drafter_flops(
    drafter: DrafterConfig, tokens: float, anchors: int, *, recompute_logits: bool = False
) -> DrafterFlops:
    """Training cost of one document of `tokens` with `anchors` blocks.

    Sources: 6 x weights x block tokens for the layers; context: the projection of the taps, whose
    input needs no gradient (4 x), and keys and values of every layer (6 x); attention 4 x heads x
    width x (tokens seen and the block), times 3.5 with its backward; the frozen head costs forward
    and input gradient (4 x), once more forward if its logits are computed again. All slots are
    counted, the anchor's too, although the loss skips rows without a label: an upper bound.
    """
    block_tokens = anchors * drafter.block_size
    keys = 2 * drafter.num_kv_heads * drafter.head_dim
    projection = drafter.context_width * drafter.hidden_size
    context = 4.0 * projection + 6.0 * drafter.num_layers * keys * drafter.hidden_size
    seen = sum(
        mean_seen(tokens, drafter.window_of(layer)) + drafter.block_size
        for layer in range(drafter.num_layers)
    )
    width = drafter.num_heads * drafter.head_dim
    head = (6.0 if recompute_logits else 4.0) * drafter.vocab_size * drafter.hidden_size
    return DrafterFlops(
        layers=6.0 * drafter.num_layers * drafter_layer_parameters(drafter) * block_tokens,
        context=context * tokens,
        attention=ATTENTION_TRAINING * 4.0 * width * seen * block_tokens,
        head=head * block_tokens,
    )


def _layer_types(text: Mapping[str, Any], kind: str, where: str) -> tuple[str, ...]:
    depth = _number(text, "num_hidden_layers", where)
    types = text.get("layer_types")
    if types is None and kind.startswith(HYBRID_PREFIXES):
        every = _number(text, "full_attention_interval", where, 4)
        types = [FULL if (i + 1) % every == 0 else LINEAR for i in range(depth)]
    found = tuple(types or (FULL,) * depth)
    unknown = sorted({str(name) for name in found} - {FULL, SLIDING, LINEAR})
    if unknown:
        raise InputInvalid(
            f"{where} has layers of a kind that is not planned: {', '.join(unknown)}",
            f"Known kinds: {FULL}, {SLIDING}, {LINEAR}.",
        )
    if len(found) != depth:
        raise InputInvalid(
            f"{where} names {len(found)} layer_types for {depth} layers", "Correct one of them."
        )
    return found


def _linear(text: Mapping[str, Any], where: str) -> LinearShape:
    _need(text, LINEAR_FIELDS, where)
    return LinearShape(
        key_heads=_number(text, "linear_num_key_heads", where),
        value_heads=_number(text, "linear_num_value_heads", where),
        key_dim=_number(text, "linear_key_head_dim", where),
        value_dim=_number(text, "linear_value_head_dim", where),
        kernel=_number(text, "linear_conv_kernel_dim", where),
    )


def _need(text: Mapping[str, Any], names: tuple[str, ...], where: str) -> None:
    missing = [name for name in names if text.get(name) is None]
    if missing:
        raise InputInvalid(
            f"{where} lacks {', '.join(missing)}",
            "Use the config.json that the model was published with; a guessed size plans nothing.",
        )


def _number(text: Mapping[str, Any], name: str, where: str, default: int | None = None) -> int:
    value = text.get(name)
    value = default if value is None else value
    floor = 0 if default == 0 else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < floor:
        raise InputInvalid(
            f"{where}: {name} must be a whole number of at least {floor}, found {value!r}",
            "Use the config.json that the model was published with.",
        )
    return value
