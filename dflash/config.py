"""What a drafter is, as a frozen record; no torch here.

Owns: the z-lab `config.json` layout (both directions), the choice of taps and of the mask token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json
from dflash.json_shape import COUNT, misfit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FULL, SLIDING = "full_attention", "sliding_attention"
MAX_HEAD_DIM = 128
"""Wider heads are not copied from the target: published drafters of such targets use 32 x 128."""
PUBLISHED = "Use the one that it was published with."
IDS = (int, [int])
TARGET = {
    "vocab_size": COUNT, "hidden_size": COUNT, "num_hidden_layers": COUNT,
    "num_attention_heads": COUNT, "num_key_value_heads?": COUNT, "head_dim?": COUNT,
    "intermediate_size?": COUNT, "max_position_embeddings?": COUNT, "rms_norm_eps?": float,
    "rope_parameters?": dict, "rope_theta?": float,
    "bos_token_id?": IDS, "eos_token_id?": IDS, "pad_token_id?": IDS, "unk_token_id?": IDS,
}  # fmt: skip
"""What is taken of a target's text part, whatever the architecture."""
DRAFTER = {
    "hidden_size": COUNT, "intermediate_size": COUNT, "num_hidden_layers": COUNT,
    "num_attention_heads": COUNT, "num_key_value_heads": COUNT, "head_dim": COUNT,
    "vocab_size": COUNT, "block_size?": COUNT, "num_target_layers?": COUNT, "rms_norm_eps": float,
    "max_position_embeddings?": COUNT, "rope_parameters?": dict, "layer_types?": [str],
    "sliding_window?": int, "is_causal?": bool,
    "dflash_config": {
        "target_layer_ids": [int], "mask_token_id": int, "block_size?": COUNT, "causal?": bool,
        "num_target_layers?": COUNT, "input_embedding_scale?": float, "output_multiplier?": float,
        "final_logit_softcapping?": float,
    },
}  # fmt: skip
"""What is taken of a drafter's."""
VOCABULARY = {"added_tokens?": [{"id": int}], "model?": {"vocab?": ({"*": int}, list)}}
"""Of a `tokenizer.json`; Unigram models keep a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """The shape of one drafter. `vocab_size` and `hidden_size` are the target's."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    target_layer_ids: tuple[int, ...]
    """Taps: 0-based target layers whose output is read (= HF `hidden_states[id + 1]`)."""
    num_target_layers: int
    mask_token_id: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1e6
    max_position_embeddings: int = 40960
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    is_causal: bool | None = None
    """None: sliding layers causal in the block, full layers not. True, False: all layers alike."""
    attention_bias: bool = False
    input_embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    final_logit_softcapping: float = 0.0

    def __post_init__(self) -> None:
        if not self.layer_types:
            object.__setattr__(self, "layer_types", (FULL,) * self.num_layers)
        for problem in _problems(self):
            raise DflashError(
                f"The drafter cannot have this shape: {problem}", "Correct the configuration."
            )

    @property
    def context_width(self) -> int:
        """Features of one captured token: all taps side by side."""
        return len(self.target_layer_ids) * self.hidden_size

    def window_of(self, layer: int) -> int | None:
        return self.sliding_window if self.layer_types[layer] == SLIDING else None

    def causal_of(self, layer: int) -> bool:
        return self.layer_types[layer] == SLIDING if self.is_causal is None else self.is_causal

    @classmethod
    def from_target_config(
        cls,
        target: Mapping[str, Any],
        *,
        num_layers: int,
        block_size: int,
        mask_token_id: int,
        taps: Sequence[int] | None = None,
        num_taps: int | None = None,
        sliding_window: int | None = None,
        **overrides: Any,
    ) -> Self:
        """A drafter that fits the target with this `config.json`; of a multimodal one, its text.

        With a window, all layers but the last slide, as in the published Qwen3.6 drafters.
        """
        text = text_part(target)
        depth = int(text["num_hidden_layers"])
        heads = int(text["num_attention_heads"])
        head_dim = int(text.get("head_dim") or text["hidden_size"] // heads)
        kv_heads = int(text.get("num_key_value_heads") or heads)
        if head_dim > MAX_HEAD_DIM:
            heads, kv_heads, head_dim = 32, 8, MAX_HEAD_DIM
        room = max(1, depth - 3)
        if num_taps and not taps and num_taps > room:
            raise DflashError(
                f"{num_taps} taps do not fit between the layers of a target that has {depth}; "
                f"at most {room} are spread.",
                "Lower --num-taps, or name the layers with --taps.",
            )
        chosen = tuple(taps) if taps else default_taps(depth, num_taps or min(5, room))
        sliding = (
            (SLIDING,) * (num_layers - 1) + (FULL,) if sliding_window else (FULL,) * num_layers
        )
        shape: dict[str, Any] = {
            "hidden_size": int(text["hidden_size"]),
            "intermediate_size": int(text.get("intermediate_size") or 3 * text["hidden_size"]),
            "num_layers": num_layers,
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": head_dim,
            "vocab_size": int(text["vocab_size"]),
            "block_size": block_size,
            "target_layer_ids": chosen,
            "num_target_layers": depth,
            "mask_token_id": mask_token_id,
            "rms_norm_eps": _float(text, "rms_norm_eps", 1e-6),
            "rope_theta": read_rope_theta(text),
            "max_position_embeddings": int(text.get("max_position_embeddings") or 40960),
            "layer_types": sliding,
            "sliding_window": sliding_window,
        }
        return cls(**(shape | overrides))

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` that SGLang, vLLM and the official package read.

        Written twice on purpose: `block_size` (lmdeploy reads only the nested one, SpecForge only
        the other) and the rotary base (old engines know only the flat key). Never
        `partial_rotary_factor`: engines apply it, and the drafter is served at two tokens a round.
        """
        nested: dict[str, Any] = {
            "target_layer_ids": list(self.target_layer_ids),
            "mask_token_id": self.mask_token_id,
            "block_size": self.block_size,
            "num_target_layers": self.num_target_layers,
            "sample_from_anchor": False,
            "input_embedding_scale": self.input_embedding_scale,
            "output_multiplier": self.output_multiplier,
            "final_logit_softcapping": self.final_logit_softcapping,
        }
        top: dict[str, Any] = {
            "architectures": ["DFlashDraftModel"],
            "model_type": "qwen3",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab_size,
            "rms_norm_eps": self.rms_norm_eps,
            "hidden_act": "silu",
            "attention_bias": self.attention_bias,
            "attention_dropout": 0.0,
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_scaling": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            "layer_types": list(self.layer_types),
            "use_sliding_window": self.sliding_window is not None,
            "sliding_window": self.sliding_window,
            "max_window_layers": self.num_layers,
            "num_target_layers": self.num_target_layers,
            "block_size": self.block_size,
            "tie_word_embeddings": False,
            "dtype": "bfloat16",
            "dflash_config": nested,
        }
        if (
            self.is_causal is not None
        ):  # absent means "by layer type", which no single value can say
            top["is_causal"] = self.is_causal
            nested["causal"] = self.is_causal
        return top

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Of a checkpoint, an export or a published drafter."""
        return cls.from_hf(read_json(folder / "config.json", "drafter's config", hint=PUBLISHED))

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Read a z-lab `config.json`; refuse one whose taps or block size would be a guess."""
        nested = config.get("dflash_config") or {}
        if not isinstance(nested, dict):
            nested = {}
        missing = [key for key in ("target_layer_ids", "mask_token_id") if nested.get(key) is None]
        block_size: Any = nested.get("block_size", config.get("block_size"))
        if block_size is None:
            missing.append("block_size")
        if missing:
            raise DflashError(
                f"The drafter's config.json lacks {', '.join(missing)}.",
                "Add them under dflash_config; the usual fallbacks pick wrong layers silently.",
            )
        if wrong := misfit(config, DRAFTER):
            raise DflashError(
                f"The drafter's config.json cannot be used: {wrong}.",
                "Take the one that it was written or published with.",
            )
        layers = int(config["num_hidden_layers"])
        window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
        types = tuple(config.get("layer_types") or (FULL,) * layers)
        taps = tuple(int(tap) for tap in nested["target_layer_ids"])
        depth: Any = config.get("num_target_layers") or nested.get("num_target_layers")
        depth = depth or max(taps) + 1
        return cls(
            hidden_size=int(config["hidden_size"]),
            intermediate_size=int(config["intermediate_size"]),
            num_layers=layers,
            num_heads=int(config["num_attention_heads"]),
            num_kv_heads=int(config["num_key_value_heads"]),
            head_dim=int(config["head_dim"]),
            vocab_size=int(config["vocab_size"]),
            block_size=int(block_size),
            target_layer_ids=taps,
            num_target_layers=int(depth),
            mask_token_id=int(nested["mask_token_id"]),
            rms_norm_eps=float(config["rms_norm_eps"]),
            rope_theta=read_rope_theta(config),
            max_position_embeddings=int(config.get("max_position_embeddings") or 40960),
            layer_types=types,
            sliding_window=window if SLIDING in types else None,
            is_causal=config.get("is_causal", nested.get("causal")),
            attention_bias=bool(config.get("attention_bias", False)),
            input_embedding_scale=_float(nested, "input_embedding_scale", 1.0),
            output_multiplier=_float(nested, "output_multiplier", 1.0),
            final_logit_softcapping=float(nested.get("final_logit_softcapping") or 0.0),
        )


def _problems(config: DrafterConfig) -> list[str]:
    taps, depth, rows = config.target_layer_ids, config.num_target_layers, config.vocab_size
    checks = {
        f"taps must be distinct and ascending, found {list(taps)}": (
            bool(taps) and list(taps) == sorted(set(taps))
        ),
        f"the target has layers 0..{depth - 1}, taps {list(taps)} do not fit": (
            all(0 <= tap < depth for tap in taps)
        ),
        f"mask token {config.mask_token_id} has no embedding row (there are {rows})": (
            0 <= config.mask_token_id < rows
        ),
        f"a block is the anchor and at least one draft slot, found size {config.block_size}": (
            config.block_size > 1
        ),
        f"layer_types names one kind for each of {config.num_layers} layers, "
        f"found {list(config.layer_types)}": (
            len(config.layer_types) == config.num_layers
            and not set(config.layer_types) - {FULL, SLIDING}
        ),
        "sliding layers without sliding_window (and use_sliding_window) would see everything": (
            SLIDING not in config.layer_types or bool(config.sliding_window)
        ),
        f"{config.num_heads} heads cannot share {config.num_kv_heads} key/value heads evenly": (
            config.num_heads % config.num_kv_heads == 0
        ),
    }
    return [problem for problem, holds in checks.items() if not holds]


def _float(config: Mapping[str, Any], name: str, otherwise: float) -> float:
    found = config.get(name)
    return otherwise if found is None else float(found)


def read_rope_theta(config: Mapping[str, Any]) -> float:
    """The rotary base: `rope_parameters` first; the flat key may be a stale default, 100x off."""
    parameters = config.get("rope_parameters") or {}
    per_type = parameters.get(FULL)  # Gemma keeps one set per layer type
    parameters = per_type if isinstance(per_type, dict) else parameters
    theta = parameters.get("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise DflashError(
            "config.json has no rope_theta, neither flat nor in rope_parameters.", "Add it."
        )
    if wrong := misfit(theta, float, "rope_theta"):
        raise DflashError(f"config.json cannot be used: {wrong}.", "Correct it.")
    return float(theta)


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Of a multimodal model's `config.json` what is about text; of another the whole."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def read_target_config(path: Path) -> dict[str, Any]:
    """A target's `config.json`, in its folder or itself; its text part has what a drafter needs."""
    file = path / "config.json" if path.is_dir() else path
    found = read_json(file, "target's config", hint=PUBLISHED)
    if wrong := misfit(text_part(found), TARGET):
        raise InputInvalid(f"{file} cannot be read as the target's config: {wrong}", PUBLISHED)
    return found


def default_taps(num_target_layers: int, count: int) -> tuple[int, ...]:
    """Evenly spread taps from layer 1 to three before the last: to choose once, then store."""
    if count == 1:
        return (num_target_layers // 2,)
    span = num_target_layers - 4
    return tuple(sorted({round(1 + i * span / (count - 1)) for i in range(count)}))


def choose_mask_token(
    vocab_size: int,
    tokenizer: Mapping[str, Any],
    taken: Sequence[int],
    *,
    in_data: Sequence[int] = (),
) -> int:
    """An embedding row that never means anything in text.

    Args:
        tokenizer: The parsed `tokenizer.json`.
        taken: Ids of eos, bos, pad, unk: never good, even when unused in the data.
        in_data: Ids that occur in the training set.
    """
    added = {int(entry["id"]): entry for entry in tokenizer.get("added_tokens") or ()}
    vocabulary = (tokenizer.get("model") or {}).get("vocab") or {}
    known = max([*added, *(vocabulary.values() if isinstance(vocabulary, dict) else ()), -1])
    if known + 1 < vocab_size:  # rows beyond the tokenizer, as z-lab chose for Qwen3
        return known + 1
    forbidden = {*taken, *in_data}
    free = [
        i
        for i, entry in added.items()
        if entry.get("special") and i not in forbidden and i < vocab_size
    ]
    if not free:
        raise DflashError(
            "No unused embedding row or special token is left to serve as the mask token.",
            "Name an id that never occurs in the data with --mask-token.",
        )
    return max(free)
