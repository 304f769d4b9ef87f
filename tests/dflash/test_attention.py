"""One rule for who sees whom; every backend computes it; flex gives way where it does not work."""

from __future__ import annotations

import itertools
import warnings

import pytest
import torch

from dflash import attention
from dflash.attention import INVALID_DOC, PADDING_DOC, Attention, Layout, dense_mask

BLOCK = 4


def layout(documents: list[int], anchors: list[tuple[int, int]], *, padding: int = 0) -> Layout:
    """`documents`: lengths; `anchors`: (document, position), document < 0 for a filler block."""
    docs = [d for d, n in enumerate(documents) for _ in range(n)]
    pos = [p for n in documents for p in range(n)]
    docs, pos = docs + [PADDING_DOC] * padding, pos + [0] * padding
    anchor = torch.tensor([a for _, a in anchors]).repeat_interleave(BLOCK)
    return Layout(
        context_doc=torch.tensor(docs),
        context_pos=torch.tensor(pos),
        block_doc=torch.tensor([d for d, _ in anchors]).repeat_interleave(BLOCK),
        block_id=torch.arange(len(anchors)).repeat_interleave(BLOCK),
        block_anchor=anchor,
        block_pos=anchor + torch.arange(BLOCK).repeat(len(anchors)),
    )


MIXED = layout([9, 6], [(0, 3), (0, 4), (0, 8), (1, 2), (INVALID_DOC, 0)], padding=3)
KINDS = list(itertools.product([None, 3, 6], [False, True]))


def words(lay: Layout, q: int, k: int, window: int | None, causal: bool) -> bool:
    """The rule once more, one pair at a time, as a person would say it."""
    size = len(lay.context_doc)
    doc, anchor, pos = (int(t[q]) for t in (lay.block_doc, lay.block_anchor, lay.block_pos))
    if doc == INVALID_DOC:
        return False
    if k < size:
        key = int(lay.context_pos[k])
        fits = int(lay.context_doc[k]) == doc and key < anchor
    else:
        key = int(lay.block_pos[k - size])
        fits = int(lay.block_id[k - size]) == int(lay.block_id[q]) and (not causal or key <= pos)
    return fits and (window is None or abs(pos - key) < window)


@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_mask_says_what_the_rule_says(window: int | None, causal: bool) -> None:
    mask = dense_mask(MIXED, window=window, causal=causal)
    for q, k in itertools.product(range(mask.shape[0]), range(mask.shape[1])):
        assert bool(mask[q, k]) == words(MIXED, q, k, window, causal), (q, k)


def random_qkv(lay: Layout) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    queries, keys = len(lay.block_pos), len(lay.block_pos) + len(lay.context_pos)
    shapes = ((1, 4, queries, 16), (1, 2, keys, 16), (1, 2, keys, 16))
    q, k, v = (torch.randn(shape, requires_grad=True) for shape in shapes)
    return q, k, v


@pytest.mark.parametrize(("window", "causal"), KINDS)
def test_sdpa_equals_eager_forward_and_backward(window: int | None, causal: bool) -> None:
    results = []
    for backend in ("eager", "sdpa"):
        q, k, v = random_qkv(MIXED)
        out = Attention(MIXED, backend=backend)(q, k, v, window=window, causal=causal)
        out.square().sum().backward()
        results.append((out.detach(), q.grad, k.grad, v.grad))
    for eager, sdpa in zip(*results, strict=True):
        assert torch.isfinite(sdpa).all()  # the filler block sees nothing, and must not give NaN
        torch.testing.assert_close(eager, sdpa, atol=1e-5, rtol=1e-5)
    assert results[1][0][:, :, -BLOCK:].abs().max() == 0


@pytest.mark.parametrize(("window", "causal"), [(None, False), (3, True)])
def test_flex_predicate_equals_the_dense_mask(window: int | None, causal: bool) -> None:
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (tensor.detach() for tensor in random_qkv(MIXED))  # no backward on the CPU
    mask = attention.flex_mask(MIXED, window=window, causal=causal)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # it warns of being uncompiled; a compiler is not needed here
        flex = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
    eager = Attention(MIXED, backend="eager")(q, k, v, window=window, causal=causal)
    torch.testing.assert_close(flex, eager, atol=1e-5, rtol=1e-5)


def test_flex_gives_way_to_sdpa_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> object:
        raise RuntimeError("No choices to select")

    monkeypatch.setattr(attention, "_flex", broken)
    monkeypatch.setattr(attention, "_flex_broken", [])
    q, k, v = random_qkv(MIXED)
    flex = Attention(MIXED, backend="flex")
    with pytest.warns(RuntimeWarning, match="SDPA"):
        out = flex(q, k, v, window=None, causal=False)
    again = Attention(MIXED, backend="flex")
    assert again.backend == "sdpa"
    expected = Attention(MIXED, backend="sdpa")(q, k, v, window=None, causal=False)
    torch.testing.assert_close(out, expected)


def test_want_of_memory_is_not_taken_for_a_broken_flex(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense mask would need more still."""

    def short() -> object:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(attention, "_flex", short)
    monkeypatch.setattr(attention, "_flex_broken", [])
    q, k, v = random_qkv(MIXED)
    with pytest.raises(torch.OutOfMemoryError):
        Attention(MIXED, backend="flex")(q, k, v, window=None, causal=False)
    assert Attention(MIXED, backend="flex").backend == "flex"
