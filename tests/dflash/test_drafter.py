"""The drafter: training forward = inference forward, nothing leaks, checkpoints come back whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.attention import Layout
from dflash.config import FULL, SLIDING
from dflash.drafter import ContextCache, Drafter, Rope, load_drafter, save_drafter
from dflash.errors import DflashError
from tests.support.tiny_targets import HIDDEN, tiny_drafter_config

if TYPE_CHECKING:
    from pathlib import Path

B, LENGTH = 4, 30
ANCHORS = (1, 2, 3, 9, 10, 17, 26)
KINDS = {
    "full": {},
    "sliding": {"layer_types": (SLIDING, SLIDING), "sliding_window": 6},
    "mixed": {"layer_types": (SLIDING, FULL), "sliding_window": 3},
    "sliding_not_causal": {
        "layer_types": (SLIDING, SLIDING), "sliding_window": 6, "is_causal": False
    },
    "causal": {"is_causal": True},
}  # fmt: skip


def drafter_of(kind: str) -> Drafter:
    torch.manual_seed(0)
    drafter = Drafter(tiny_drafter_config(**KINDS[kind]))
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return drafter


def blocks(anchors: tuple[int, ...], document: int = 0, first: int = 0) -> dict:
    anchor = torch.tensor(anchors).repeat_interleave(B)
    ids = torch.arange(first, first + len(anchors))
    return {
        "block_doc": torch.full((len(anchors) * B,), document),
        "block_id": ids.repeat_interleave(B),
        "block_anchor": anchor,
        "block_pos": anchor + torch.arange(B).repeat(len(anchors)),
    }


def one_document(length: int = LENGTH, anchors: tuple[int, ...] = ANCHORS) -> Layout:
    return Layout(
        context_doc=torch.zeros(length, dtype=torch.long),
        context_pos=torch.arange(length),
        **blocks(anchors),
    )


def inputs(seed: int = 1, length: int = LENGTH, count: int = len(ANCHORS)) -> tuple:
    torch.manual_seed(seed)
    return torch.randn(1, count * B, HIDDEN), torch.randn(1, length, 3 * HIDDEN)


@pytest.mark.parametrize("kind", KINDS)
def test_training_forward_is_the_inference_forward(kind: str) -> None:
    drafter, (embeds, states) = drafter_of(kind), inputs()
    packed = drafter(embeds, states, one_document(), "sdpa").view(len(ANCHORS), B, HIDDEN)
    for j, a in enumerate(ANCHORS):
        block = embeds[:, j * B : (j + 1) * B]
        c = drafter.context(states[:, :a])
        alone = drafter.draft(block, c, torch.arange(a), a + torch.arange(B))
        torch.testing.assert_close(packed[j], alone[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_context_cache_changes_nothing(kind: str) -> None:
    drafter, (embeds, states) = drafter_of(kind), inputs()
    cache, known = ContextCache(drafter.config), 0
    for j, a in enumerate(ANCHORS):
        block = embeds[:, j * B : (j + 1) * B]
        fresh, positions = drafter.context(states[:, known:a]), torch.arange(known, a)
        cached = drafter.draft(block, fresh, positions, a + torch.arange(B), cache=cache)
        whole = drafter.context(states[:, :a])
        plain = drafter.draft(block, whole, torch.arange(a), a + torch.arange(B))
        torch.testing.assert_close(cached, plain, atol=1e-5, rtol=1e-4)
        known = a
        assert len(cache) == a


@pytest.mark.parametrize("kind", KINDS)
def test_no_block_sees_the_anchor_state_or_later(kind: str) -> None:
    """Dense anchors: a test by block number instead of position would pass on sparse ones."""
    drafter = drafter_of(kind)
    anchors = tuple(range(1, LENGTH - B))
    embeds, states = inputs(count=len(anchors))
    layout = one_document(anchors=anchors)
    before = drafter(embeds, states, layout, "sdpa").view(len(anchors), B, HIDDEN)
    for t in (0, 7, 15, 24):
        changed = states.clone()
        changed[:, t] += 10
        after = drafter(embeds, changed, layout, "sdpa").view(len(anchors), B, HIDDEN)
        differs = (after - before).abs().amax((1, 2)) > 1e-6
        for j, a in enumerate(anchors):
            if a <= t:
                assert not differs[j], (t, a)
        assert differs[t]  # the block right after t does see it


def test_slots_see_each_other_in_full_layers_and_only_backwards_in_causal_ones() -> None:
    for kind, forward in (("full", True), ("causal", False)):
        embeds, states = inputs()
        embeds.requires_grad_()
        out = drafter_of(kind)(embeds, states, one_document(), "sdpa")
        out[0, 1].sum().backward()  # slot 1 of the first block
        assert bool(embeds.grad[0, B - 1].abs().sum() > 0) is forward
        assert embeds.grad[0, 0].abs().sum() > 0
        assert embeds.grad[0, B:].abs().sum() == 0  # no other block


@pytest.mark.parametrize("kind", KINDS)
def test_packed_documents_equal_single_ones(kind: str) -> None:
    drafter = drafter_of(kind)
    parts, layouts = [], []
    for document, (length, anchors) in enumerate([(12, (3, 9)), (LENGTH, ANCHORS), (7, (1, 4))]):
        parts.append((*inputs(seed=document, length=length, count=len(anchors)), length, anchors))
        layouts.append(one_document(length, anchors))
    first, pieces = 0, []
    for document, (_, _, _, anchors) in enumerate(parts):
        pieces.append(blocks(anchors, document, first))
        first += len(anchors)
    packed_layout = Layout(
        context_doc=torch.cat([torch.full((n,), d) for d, (_, _, n, _) in enumerate(parts)]),
        context_pos=torch.cat([torch.arange(n) for _, _, n, _ in parts]),
        **{name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]},
    )
    embeds = torch.cat([e for e, _, _, _ in parts], dim=1)
    states = torch.cat([s for _, s, _, _ in parts], dim=1)
    packed = drafter(embeds, states, packed_layout, "sdpa")
    single = [drafter(e, s, lay, "sdpa") for (e, s, _, _), lay in zip(parts, layouts, strict=True)]
    torch.testing.assert_close(packed, torch.cat(single, dim=1), atol=1e-5, rtol=1e-4)


def test_the_whole_head_is_rotated() -> None:
    config = tiny_drafter_config()
    rope = Rope(torch.tensor([5]), config, torch.float32)
    rates = config.rope_theta ** (-torch.arange(0, config.head_dim, 2) / config.head_dim)
    expected = torch.cat([torch.cos(5 * rates)] * 2)
    torch.testing.assert_close(rope.cos[0], expected)


def test_names_are_the_published_ones_and_nothing_is_doubled() -> None:
    names = set(drafter_of("full").state_dict())
    assert len(names) == 2 * 11 + 3
    assert {"fc.weight", "hidden_norm.weight", "norm.weight"} < names
    assert "layers.1.self_attn.q_norm.weight" in names
    assert not any("embed" in name or "head" in name for name in names)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpoint_comes_back_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    drafter = drafter_of("mixed").to(dtype)
    save_drafter(drafter, tmp_path)
    loaded, config = load_drafter(tmp_path, dtype)
    assert config == drafter.config
    for name, tensor in drafter.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)


def test_a_model_prefix_is_accepted_and_a_wrong_shape_is_named(tmp_path: Path) -> None:
    save_drafter(drafter_of("full"), tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({f"model.{k}": t for k, t in tensors.items()}, tmp_path / "model.safetensors")
    load_drafter(tmp_path)
    tensors["fc.weight"] = tensors["fc.weight"][:, : 2 * HIDDEN].contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(DflashError, match=r"fc\.weight"):
        load_drafter(tmp_path)


def test_fp16_states_do_not_overflow_in_fc() -> None:
    drafter = drafter_of("full")
    _, states = inputs()
    assert torch.isfinite(drafter.context((states * 2e4).clamp(-6e4, 6e4).half())).all()
