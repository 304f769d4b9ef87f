"""How each serving engine would read a drafter's config.json, next to what the drafter was
trained with. Torch-free and pure.

An engine that reads a tap, a window or a rotary width differently serves the drafter at two tokens
a round and reports no error. The rules were read in each engine's source, at the version given;
where two versions of an engine disagree, the less forgiving one is followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dflash.config import DrafterConfig

SLIDING = "sliding_attention"
NEVER_ROTARY = ("partial_rotary_factor", "mrope_section", "mrope_interleaved")
VERSIONS = {
    "official": "dflash 0.1.0",
    "sglang": "0.5.23",
    "vllm": "main, 2026-08",
    "llama.cpp": "conversion/qwen.py, 2026-08",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one engine takes from the config; `refusal` when it would not start."""

    block_size: int | None
    target_layer_ids: tuple[int, ...] | None
    mask_token_id: int | None
    rope_theta: float | None
    rotary_dim: int
    windows: tuple[int | None, ...]
    causal: tuple[bool, ...]
    refusal: str = ""


def expected(config: DrafterConfig) -> Reading:
    """What the drafter was trained with."""
    layers = range(config.num_layers)
    return Reading(
        block_size=config.block_size,
        target_layer_ids=config.target_layer_ids,
        mask_token_id=config.mask_token_id,
        rope_theta=config.rope_theta,
        rotary_dim=config.head_dim,
        windows=tuple(config.window_of(i) for i in layers),
        causal=tuple(config.causal_of(i) for i in layers),
    )


def differences(engine: str, hf: Mapping[str, Any], config: DrafterConfig) -> list[str]:
    """One sentence per field that this engine would read differently; empty is good."""
    found, wanted = ENGINES[engine](hf), expected(config)
    out = [found.refusal] if found.refusal else []
    for name in ("block_size", "target_layer_ids", "mask_token_id", "rope_theta", "rotary_dim",
                 "windows", "causal"):  # fmt: skip
        theirs, ours = getattr(found, name), getattr(wanted, name)
        if theirs != ours:
            out.append(f"{name}: trained with {_show(ours)}, read as {_show(theirs)}")
    return out


def official(hf: Mapping[str, Any]) -> Reading:
    """Nested before top level; block size 16 when absent; the taps' formula when they are."""
    nested = _nested(hf)
    # Qwen3Config drops the window unless use_sliding_window; the layer stays causal, unwindowed.
    window = hf.get("sliding_window") if hf.get("use_sliding_window") else None
    refusal = ""
    if hf.get("num_target_layers") is None:
        refusal = "num_target_layers is missing at top level: AttributeError at load"
    return _reading(
        hf,
        block_size=_either(nested, hf, "block_size", 16),
        taps=nested.get("target_layer_ids", hf.get("target_layer_ids")),
        mask=_either(nested, hf, "mask_token_id"),
        theta=_theta(hf),
        rotary=int(hf["head_dim"]),  # partial_rotary_factor is ignored by Qwen3's rotary module
        window=window,
        causal=hf.get("is_causal"),
        refusal=refusal,
    )


def sglang(hf: Mapping[str, Any]) -> Reading:
    """Nested before top level; a partial rotary factor is applied; sliding layers need a window."""
    nested = _nested(hf)
    window, types = hf.get("sliding_window"), hf.get("layer_types") or ()
    refusal = ""
    if SLIDING in types and window is None:
        refusal = "sliding layers without sliding_window: ValueError at load"
    scaling = hf.get("rope_scaling") or {}
    rotary = int(scaling.get("rope_dim") or hf["head_dim"] * _partial(hf))
    return _reading(
        hf,
        block_size=_either(nested, hf, "block_size"),
        taps=nested.get("target_layer_ids", hf.get("target_layer_ids")),
        mask=_either(nested, hf, "mask_token_id"),
        theta=_theta(hf),
        rotary=rotary,
        window=window,
        causal=hf.get("is_causal"),
        refusal=refusal,
    )


def vllm(hf: Mapping[str, Any]) -> Reading:
    """Taps come as ids of the layer after (+1); is_causal, then dflash_config.causal, decide."""
    nested = _nested(hf)
    after = hf.get("eagle_aux_hidden_state_layer_ids")
    taps = nested.get("target_layer_ids", hf.get("target_layer_ids"))
    taps = [i - 1 for i in after] if after else taps
    refusal = ""
    if any(
        key in (hf.get("rope_parameters") or {}) for key in ("mrope_section", "mrope_interleaved")
    ):
        refusal = "a rotary block with mrope keys is rejected"
    return _reading(
        hf,
        block_size=_either(nested, hf, "block_size"),
        taps=taps,
        mask=_either(nested, hf, "mask_token_id"),
        theta=_theta(hf),
        rotary=int(hf["head_dim"] * _partial(hf)),
        window=hf.get("sliding_window") if hf.get("use_sliding_window", True) else None,
        causal=hf.get("is_causal", nested.get("causal")),
        refusal=refusal,
    )


def llama_cpp(hf: Mapping[str, Any]) -> Reading:
    """The GGUF converter: taps +1 and back, block size 16 when absent, the whole head rotated."""
    nested = _nested(hf)
    taps = nested.get("target_layer_ids", hf.get("target_layer_ids"))
    refusal = "" if taps else "no target_layer_ids: the converted file is refused at load"
    return _reading(
        hf,
        block_size=_either(hf, nested, "block_size", 16),
        taps=taps,
        mask=_either(hf, nested, "mask_token_id"),
        theta=_theta(hf),
        rotary=int(hf["head_dim"]),
        window=hf.get("sliding_window") if hf.get("use_sliding_window", True) else None,
        causal=hf.get("is_causal", nested.get("causal")),
        refusal=refusal,
    )


ENGINES: dict[str, Callable[[Mapping[str, Any]], Reading]] = {
    "official": official,
    "sglang": sglang,
    "vllm": vllm,
    "llama.cpp": llama_cpp,
}


def layout_problems(hf: Mapping[str, Any]) -> list[str]:
    """What some engine or version of one needs although those above would do without."""
    nested, rope = _nested(hf), hf.get("rope_parameters") or {}
    needed = [("", hf, key) for key in ("block_size", "num_target_layers", "rope_theta")]
    needed += [("dflash_config.", nested, key) for key in
               ("target_layer_ids", "mask_token_id", "block_size")]  # fmt: skip
    needed += [("rope_parameters.", rope, "rope_theta")]
    out = [f"{where}{key} is missing" for where, holder, key in needed if holder.get(key) is None]
    for where in (hf, rope, hf.get("rope_scaling") or {}):
        out += [f"{key} must not be there" for key in NEVER_ROTARY if key in where]
    for key, other in (("block_size", nested), ("rope_theta", rope)):
        if other.get(key) != hf.get(key):
            out.append(f"{key} is {hf.get(key)} at top level and {other.get(key)} nested")
    return out


def _reading(
    hf: Mapping[str, Any],
    *,
    block_size: Any,
    taps: Any,
    mask: Any,
    theta: float | None,
    rotary: int,
    window: int | None,
    causal: bool | None,
    refusal: str,
) -> Reading:
    layers = int(hf["num_hidden_layers"])
    types = list(hf.get("layer_types") or ["full_attention"] * layers)
    if not taps and hf.get("num_target_layers"):
        taps = _guessed_taps(int(hf["num_target_layers"]), layers)
    return Reading(
        block_size=None if block_size is None else int(block_size),
        target_layer_ids=tuple(taps) if taps else None,
        mask_token_id=mask,
        rope_theta=theta,
        rotary_dim=rotary,
        windows=tuple(window if kind == SLIDING else None for kind in types),
        causal=tuple(kind == SLIDING if causal is None else bool(causal) for kind in types),
        refusal=refusal,
    )


def _guessed_taps(target_layers: int, draft_layers: int) -> list[int]:
    """The engines' fallback: one tap per draft layer, whatever the drafter was trained with."""
    if draft_layers == 1:
        return [target_layers // 2]
    span = target_layers - 4
    return [round(1 + i * span / (draft_layers - 1)) for i in range(draft_layers)]


def _nested(hf: Mapping[str, Any]) -> Mapping[str, Any]:
    return hf.get("dflash_config") or {}


def _either(
    first: Mapping[str, Any], second: Mapping[str, Any], key: str, default: Any = None
) -> Any:
    return first.get(key, second.get(key, default))


def _theta(hf: Mapping[str, Any]) -> float | None:
    theta = (hf.get("rope_parameters") or {}).get("rope_theta", hf.get("rope_theta"))
    return None if theta is None else float(theta)


def _partial(hf: Mapping[str, Any]) -> float:
    block = hf.get("rope_parameters") or {}
    return float(block.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0)))


def _show(value: Any) -> str:
    return "nothing" if value is None else str(list(value) if isinstance(value, tuple) else value)
