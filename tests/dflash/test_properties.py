"""What must hold for any documents, anchors, windows and causality: on random ones."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.attention import Layout
from dflash.config import FULL, SLIDING
from dflash.drafter import Drafter
from tests.support.tiny_targets import HIDDEN, tiny_drafter_config

EXAMPLES = settings(max_examples=60, deadline=None, database=None)


@st.composite
def cases(draw):
    """Documents with their anchors, and a drafter's shape."""
    size = draw(st.integers(2, 6))
    lengths = draw(st.lists(st.integers(2, 18), min_size=1, max_size=3))
    anchors = [
        sorted(draw(st.sets(st.integers(1, length - 1), min_size=1, max_size=5)))
        for length in lengths
    ]
    types = draw(st.lists(st.sampled_from([FULL, SLIDING]), min_size=2, max_size=2))
    window = draw(st.integers(2, 20)) if SLIDING in types else None
    causal = draw(st.sampled_from([None, True, False]))
    shape = {
        "block_size": size, "layer_types": tuple(types), "sliding_window": window,
        "is_causal": causal,
    }  # fmt: skip
    return lengths, anchors, shape, draw(st.integers(0, 9))


def drafter_of(shape, seed):
    torch.manual_seed(seed)
    drafter = Drafter(tiny_drafter_config(**shape)).eval()
    with torch.no_grad():
        for parameter in drafter.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return drafter


def packed(lengths, anchors, size):
    flat = [(doc, a) for doc, of_doc in enumerate(anchors) for a in of_doc]
    doc = torch.tensor([d for d, _ in flat]).repeat_interleave(size)
    anchor = torch.tensor([a for _, a in flat]).repeat_interleave(size)
    return Layout(
        context_doc=torch.cat([torch.full((n,), d) for d, n in enumerate(lengths)]),
        context_pos=torch.cat([torch.arange(n) for n in lengths]),
        block_doc=doc,
        block_id=torch.arange(len(flat)).repeat_interleave(size),
        block_anchor=anchor,
        block_pos=anchor + torch.arange(size).repeat(len(flat)),
    )


def inputs(lengths, anchors, size):
    count = sum(map(len, anchors))
    return torch.randn(1, count * size, HIDDEN), torch.randn(1, sum(lengths), 3 * HIDDEN)


@EXAMPLES
@given(cases())
def test_packed_training_forward_is_single_inference_forward(case):
    lengths, anchors, shape, seed = case
    drafter, size = drafter_of(shape, seed), shape["block_size"]
    with torch.no_grad():
        embeds, states = inputs(lengths, anchors, size)
        out = drafter(embeds, states, packed(lengths, anchors, size), "sdpa")
        block, start = 0, 0
        for length, of_doc in zip(lengths, anchors, strict=True):
            for a in of_doc:
                here = slice(block * size, (block + 1) * size)
                context = drafter.context(states[:, start : start + a])
                alone = drafter.draft(
                    embeds[:, here], context, torch.arange(a), a + torch.arange(size)
                )
                torch.testing.assert_close(out[:, here], alone, atol=1e-5, rtol=1e-5)
                block += 1
            start += length


@EXAMPLES
@given(cases(), st.data())
def test_a_state_reaches_only_later_blocks_of_its_own_document(case, data):
    lengths, anchors, shape, seed = case
    drafter, size = drafter_of(shape, seed), shape["block_size"]
    doc = data.draw(st.integers(0, len(lengths) - 1))
    t = data.draw(st.integers(0, lengths[doc] - 1))
    with torch.no_grad():
        embeds, states = inputs(lengths, anchors, size)
        layout = packed(lengths, anchors, size)
        before = drafter(embeds, states, layout, "sdpa")
        changed = states.clone()
        changed[:, sum(lengths[:doc]) + t] = 10 * torch.randn(3 * HIDDEN)
        after = drafter(embeds, changed, layout, "sdpa")
    moved = (after - before).abs().amax(-1)[0].view(-1, size).amax(-1) > 0
    flat = [(d, a) for d, of_doc in enumerate(anchors) for a in of_doc]
    for number, (d, a) in enumerate(flat):
        if d != doc or a <= t:
            assert not moved[number], (d, a, t)
        elif a == t + 1:
            assert moved[number], (d, a, t)


@EXAMPLES
@given(cases(), st.data())
def test_no_block_reaches_another(case, data):
    lengths, anchors, shape, seed = case
    drafter, size = drafter_of(shape, seed), shape["block_size"]
    count = sum(map(len, anchors))
    chosen = data.draw(st.integers(0, count - 1))
    with torch.no_grad():
        embeds, states = inputs(lengths, anchors, size)
        layout = packed(lengths, anchors, size)
        before = drafter(embeds, states, layout, "sdpa").view(count, size, HIDDEN)
        changed = embeds.clone()
        changed[:, chosen * size : (chosen + 1) * size] += 5
        after = drafter(changed, states, layout, "sdpa").view(count, size, HIDDEN)
    moved = (after - before).abs().amax((1, 2)) > 0
    assert moved[chosen]
    assert moved.sum() == 1
