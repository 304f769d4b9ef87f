"""A drafter trained with the packed forward is accepted when decoding: both sides mean the same."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from dflash.attention import Layout
from dflash.decode import Greedy, TargetSession, decode, prefill
from dflash.drafter import Drafter
from dflash.proposers import DrafterProposer, LookupProposer, head_logits, untrained
from dflash.statistics import micro
from dflash.target import TargetTaps
from tests.support.tiny_targets import tiny_drafter_config, tiny_target

PROMPT = [5, 17, 33, 90, 4, 61, 77]
NEW = 33


def plain(model):
    session = TargetSession(model)
    start = prefill(session, PROMPT)
    found = decode(session, start, proposer=None, sampler=Greedy(), limit=NEW, stop_ids=frozenset())
    session.close()
    return found.tokens


def overfitted(config, taps, text, *, steps):
    """A drafter that knows one text by heart, taught by the training forward."""
    size, anchors = config.block_size, torch.arange(len(PROMPT), len(text) - config.block_size)
    ids = torch.tensor(text)
    states = taps.states(ids[None], torch.tensor([len(text)]))
    rows = torch.full((len(anchors), size), config.mask_token_id)
    rows[:, 0] = ids[anchors]
    positions = (anchors[:, None] + torch.arange(size)).flatten()
    context = torch.arange(len(text))
    layout = Layout(
        context_doc=torch.zeros_like(context),
        context_pos=context,
        block_doc=torch.zeros_like(positions),
        block_id=torch.arange(len(anchors)).repeat_interleave(size),
        block_anchor=anchors.repeat_interleave(size),
        block_pos=positions,
    )
    labels = ids[positions].view(-1, size)[:, 1:]
    torch.manual_seed(0)
    drafter = Drafter(config)
    optimizer = torch.optim.Adam(drafter.parameters(), lr=3e-3)
    embeds = taps.embed(rows).view(1, -1, config.hidden_size)
    for _ in range(steps):
        out = drafter(embeds, states, layout, "sdpa").view(len(anchors), size, -1)[:, 1:]
        logits = head_logits(config, taps, out)
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    accuracy = (logits.argmax(-1) == labels).float().mean()
    return drafter.eval().requires_grad_(requires_grad=False), float(accuracy)


class OffByOne(DrafterProposer):
    """The classic mistake: every state one token late."""

    def observe(self, states):
        super().observe(states.roll(1, dims=0))


@pytest.mark.parametrize("kind", ["qwen3", "hybrid"])
def test_training_accuracy_is_acceptance(kind):
    model = tiny_target(kind, scale=6.0)
    config = tiny_drafter_config(kind)
    taps = TargetTaps(model, config.target_layer_ids)
    text = plain(model)
    drafter, accuracy = overfitted(config, taps, PROMPT + text, steps=120)
    assert accuracy > 0.97, "the text was not learnt; the rest would prove nothing"
    session = TargetSession(model, taps=config.target_layer_ids)
    start = prefill(session, PROMPT)
    lengths = {}
    for name, proposer in {
        "trained": DrafterProposer(drafter, taps),
        "off by one": OffByOne(drafter, taps),
        "untrained": DrafterProposer(untrained(config, seed=3), taps),
    }.items():
        found = decode(
            session, start, proposer=proposer, sampler=Greedy(), limit=NEW, stop_ids=frozenset()
        )
        assert found.tokens == text, name
        lengths[name] = micro([found.rounds])
    session.close()
    assert lengths["trained"] > 0.85 * config.block_size
    assert lengths["untrained"] < 1.5
    assert lengths["off by one"] < lengths["trained"]


def test_untrained_is_seeded_and_leaves_the_generator_alone():
    config = tiny_drafter_config()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one = untrained(config, seed=7)
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.fc.weight, untrained(config, seed=7).fc.weight)
    assert not torch.equal(one.fc.weight, untrained(config, seed=8).fc.weight)


def test_lookup_proposes_a_block_at_most():
    proposer = LookupProposer(block_size=4)
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2]
    assert proposer.propose(text, limit=9, sampler=Greedy()).tokens == [3, 4, 5]
    proposer.start()
    assert proposer.propose([8, 9], limit=9, sampler=Greedy()).tokens == []
