"""Speculative text equals plain text, whatever is proposed and whatever the cache is made of."""

from __future__ import annotations

import itertools

import pytest
import torch

from dflash.decode import (
    Greedy,
    Proposal,
    Rejection,
    TargetSession,
    decode,
    prefill,
)
from dflash.errors import DflashError
from dflash.statistics import Round
from tests.support.tiny_targets import VOCAB, tiny_target

NEVER = frozenset({VOCAB + 1})


class Scripted:
    """Knows the text; per round its first `right` drafts are true, the rest are false."""

    taps = ()

    def __init__(self, text, prompt, *, right, block=8):
        self.text, self.prompt, self.block = text, prompt, block
        self.right = itertools.cycle(right)

    def start(self):
        pass

    def observe(self, states):
        assert states is None

    def propose(self, tokens, *, limit, sampler):
        at = len(tokens) - self.prompt
        true = self.text[at : at + self.block - 1]
        right = next(self.right)
        drafts = [t if i < right else (t + 1) % VOCAB for i, t in enumerate(true)]
        return Proposal(tokens=drafts[:limit])


def run(model, prompt, *, proposer=None, limit=40, stop=NEVER, session=TargetSession):
    target = session(model)
    try:
        return decode(
            target, prefill(target, prompt), proposer=proposer, sampler=Greedy(), limit=limit,
            stop_ids=stop,
        )  # fmt: skip
    finally:
        target.close()


PROMPT = [5, 17, 33, 90, 4, 61, 77]


@pytest.mark.parametrize("kind", ["qwen3", "llama", "sliding", "hybrid"])
def test_plain_equals_generate(kind):
    model = tiny_target(kind)
    plain = run(model, PROMPT)
    expected = model.generate(
        torch.tensor([PROMPT]), max_new_tokens=40, do_sample=False, eos_token_id=None
    )
    assert plain.tokens == expected[0, len(PROMPT) :].tolist()
    assert plain.rounds == [Round(proposed=0, accepted=0, produced=1)] * 39
    assert len(set(plain.tokens)) > 3, "a text that repeats itself proves nothing"


@pytest.mark.parametrize("kind", ["qwen3", "llama", "sliding", "hybrid"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_lossless_with_any_pattern_of_rejections(kind, seed):
    model = tiny_target(kind, seed=seed)
    plain = run(model, PROMPT, limit=48)
    for right in ([0], [7], [3], [0, 7, 2, 5, 1]):
        spec = run(
            model, PROMPT, limit=48, proposer=Scripted(plain.tokens, len(PROMPT), right=right)
        )
        assert spec.tokens == plain.tokens, (kind, seed, right)


class NaiveCrop(TargetSession):
    """What must not be done: rejected drafts stay in the recurrent state."""

    def keep(self, count):
        wrong = len(self._fed) - count
        for layer in self._cache.layers:
            if wrong and getattr(layer, "keys", None) is not None:
                layer.keys = layer.keys[..., :-wrong, :]
                layer.values = layer.values[..., :-wrong, :]


def test_naive_crop_is_caught_on_a_hybrid_target():
    changed = 0
    for seed in range(3):
        model = tiny_target("hybrid", seed=seed)
        plain = run(model, PROMPT, limit=48)
        script = Scripted(plain.tokens, len(PROMPT), right=[1, 3, 0])
        spec = run(model, PROMPT, limit=48, proposer=script, session=NaiveCrop)
        changed += spec.tokens != plain.tokens
    assert changed, "the negative control must be able to fail"


@pytest.fixture(scope="module")
def qwen():
    model = tiny_target("qwen3")
    return model, run(model, PROMPT, limit=41).tokens


def test_perfect_proposer(qwen):
    model, text = qwen
    spec = run(model, PROMPT, limit=41, proposer=Scripted(text, len(PROMPT), right=[7]))
    # 1 token from the prompt, then 40 = 5 rounds of 7 drafts + 1.
    assert spec.rounds == [Round(proposed=7, accepted=7, produced=8)] * 5


def test_always_wrong_proposer(qwen):
    model, text = qwen
    spec = run(model, PROMPT, limit=41, proposer=Scripted(text, len(PROMPT), right=[0]))
    assert len(spec.rounds) == 40
    assert all((r.accepted, r.produced) == (0, 1) for r in spec.rounds)


def test_k_right_proposer_and_the_clip_at_the_end(qwen):
    model, text = qwen
    spec = run(model, PROMPT, limit=41, proposer=Scripted(text, len(PROMPT), right=[2]))
    assert [r.produced for r in spec.rounds] == [3] * 13 + [1]
    assert spec.rounds[-1] == Round(proposed=0, accepted=0, produced=1)
    assert spec.ended == "length"


def test_end_token_inside_a_block_ends_the_text(qwen):
    model, text = qwen
    at = next(i for i in range(3, 30) if text[i] not in text[:i])
    stop = frozenset({text[at]})
    plain = run(model, PROMPT, limit=41, stop=stop)
    spec = run(model, PROMPT, limit=41, stop=stop, proposer=Scripted(text, 7, right=[7]))
    assert spec.tokens == plain.tokens == text[: at + 1]
    assert spec.ended == plain.ended == "stop"
    assert sum(r.produced for r in spec.rounds) == at


def test_end_token_first_gives_no_round(qwen):
    model, text = qwen
    spec = run(model, PROMPT, stop=frozenset({text[0]}))
    assert spec.tokens == text[:1]
    assert spec.rounds == []


class Recorder:
    """Collects the states it is shown; proposes nonsense."""

    def __init__(self, taps):
        self.taps, self.states = taps, []

    def start(self):
        self.states = []

    def observe(self, states):
        self.states.append(states)

    def propose(self, tokens, *, limit, sampler):
        assert sum(len(s) for s in self.states) == len(tokens) - 1, "context ends before the anchor"
        return Proposal(tokens=[1, 2, 3][:limit])


@pytest.mark.parametrize("kind", ["qwen3", "hybrid"])
def test_observed_states_are_the_hidden_states_of_the_text(kind):
    model = tiny_target(kind)
    session, recorder = TargetSession(model, taps=(0, 1, 2)), Recorder((0, 2))
    decoded = decode(
        session, prefill(session, PROMPT), proposer=recorder, sampler=Greedy(), limit=12,
        stop_ids=NEVER,
    )  # fmt: skip
    session.close()
    text = torch.tensor([PROMPT + decoded.tokens[:-1]])
    hidden = model(text, output_hidden_states=True).hidden_states
    expected = torch.cat([hidden[1][0], hidden[3][0]], dim=-1)
    found = torch.cat(recorder.states)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max())


def test_a_tap_outside_the_target_is_refused():
    with pytest.raises(DflashError, match=r"taps layer 8, the target has layers 0\.\.7"):
        TargetSession(tiny_target(), taps=(1, 8))


def test_rejection_keeps_the_targets_distribution():
    torch.manual_seed(0)
    target, draft = torch.randn(2, 6) * 1.5, torch.randn(1, 6) * 1.5
    sampler = Rejection(temperature=0.8, top_p=0.95, seed=1)
    expected = sampler.probs(target)[0]
    n = 6000
    for certain in (False, True):
        counts = torch.zeros(6)
        for _ in range(n):
            proposal = Proposal(tokens=[3]) if certain else sampler.pick(draft)
            accepted, extra = sampler.judge(target, proposal)
            counts[proposal.tokens[0] if accepted else extra] += 1
        # 4 standard errors of the widest cell.
        assert (counts / n - expected).abs().max() < 4 * (0.25 / n) ** 0.5
        assert counts[expected == 0].sum() == 0


def test_rejection_is_seeded():
    logits = torch.randn(4, 20)
    first, second = (Rejection(temperature=1.0, seed=7).pick(logits).tokens for _ in range(2))
    assert first == second
    with pytest.raises(DflashError, match="no sampling"):
        Rejection(temperature=0.0)
