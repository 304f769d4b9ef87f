"""Our forward, masks and losses against the peers': frozen numbers always, live where installed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from dflash.attention import INVALID_DOC, PADDING_DOC, Layout, dense_mask
from dflash.batches import Batches, MicroBatch
from dflash.config import DrafterConfig
from dflash.drafter import Drafter
from dflash.losses import LossOptions, block_loss
from dflash.shards import Row
from tests.oracles import peers
from tests.support.oracles import oracle_python

FROZEN = Path(__file__).parent / "frozen" / "peers.json"


@pytest.fixture(scope="module")
def frozen() -> dict:
    return json.loads(FROZEN.read_text(encoding="utf-8"))


def ours(kind: str) -> Drafter:
    drafter = Drafter(DrafterConfig.from_hf(peers.config(kind)))
    drafter.load_state_dict({k: torch.from_numpy(v) for k, v in peers.parameters().items()})
    return drafter.eval()


def layout_of(anchors: tuple[int, ...], documents: tuple[int, ...]) -> Layout:
    """Anchors are places in the packed row here; positions count within a document, as we do."""
    starts = {d: documents.index(d) for d in set(documents) if d >= 0}
    context_pos = [i - starts[d] if d >= 0 else 0 for i, d in enumerate(documents)]
    doc = torch.tensor([documents[a] for a in anchors]).repeat_interleave(peers.BLOCK)
    anchor = torch.tensor([context_pos[a] for a in anchors]).repeat_interleave(peers.BLOCK)
    slots = torch.arange(peers.BLOCK).repeat(len(anchors))
    return Layout(
        context_doc=torch.tensor(documents),
        context_pos=torch.tensor(context_pos),
        block_doc=doc,
        block_id=torch.arange(len(anchors)).repeat_interleave(peers.BLOCK),
        block_anchor=anchor,
        block_pos=anchor + slots,
    )


ONE_DOCUMENT = layout_of(peers.ANCHORS, (0,) * peers.LENGTH)


def block_embeds() -> torch.Tensor:
    ids = [[int(peers.tokens()[a])] + [peers.MASK_ID] * (peers.BLOCK - 1) for a in peers.ANCHORS]
    return torch.from_numpy(peers.embedding())[torch.tensor(ids)]  # [N,B,H]


@pytest.mark.parametrize("kind", peers.KINDS)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_training_forward_equals_official_inference(frozen: dict, kind: str, backend: str) -> None:
    expected = torch.tensor(frozen["official"][kind])
    with torch.no_grad():
        embeds = block_embeds().reshape(1, -1, peers.HIDDEN)
        states = torch.from_numpy(peers.states())[None]
        out = ours(kind)(embeds, states, ONE_DOCUMENT, backend)
    torch.testing.assert_close(out.view_as(expected), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", peers.KINDS)
def test_inference_forward_equals_official(frozen: dict, kind: str) -> None:
    drafter, states = ours(kind), torch.from_numpy(peers.states())[None]
    for i, a in enumerate(peers.ANCHORS):
        with torch.no_grad():
            out = drafter.draft(
                block_embeds()[i : i + 1],
                drafter.context(states[:, :a]),
                torch.arange(a),
                a + torch.arange(peers.BLOCK),
            )
        expected = torch.tensor(frozen["official"][kind][i])
        torch.testing.assert_close(out[0], expected, atol=1e-5, rtol=1e-5)


def test_masks_equal_specforge_on_one_document(frozen: dict) -> None:
    full = dense_mask(ONE_DOCUMENT, window=None, causal=False)
    sliding = dense_mask(ONE_DOCUMENT, window=peers.WINDOW, causal=True)
    assert full.int().tolist() == frozen["specforge_masks"]["full"]
    assert sliding.int().tolist() == frozen["specforge_masks"]["sliding"]


def test_mask_equals_speculators_on_packed_documents(frozen: dict) -> None:
    layout = layout_of(peers.DOCUMENT_ANCHORS, peers.DOCUMENTS)
    assert PADDING_DOC in layout.context_doc
    assert INVALID_DOC not in layout.block_doc
    mask = dense_mask(layout, window=None, causal=False)
    assert mask.int().tolist() == frozen["speculators_mask"]


class OneRow:
    """A tokenized set with the peers' document."""

    lengths = np.array([peers.LENGTH])

    def __len__(self) -> int:
        return 1

    def row(self, _index: int) -> Row:
        mask = np.ones(peers.LENGTH, dtype=np.uint8)
        mask[: peers.PROMPT] = 0
        return Row(id="0", input_ids=peers.tokens().astype(np.int32), loss_mask=mask)


@pytest.mark.parametrize(("kind", "theirs"), [("ce", "dflash"), ("dpace", "dpace")])
def test_losses_equal_specforge(
    frozen: dict, kind: str, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dflash.batches.sample_anchors", lambda *_, **__: np.array(peers.ANCHORS))
    batches = Batches(
        OneRow(), batch_docs=1, anchors_per_doc=len(peers.ANCHORS), block_size=peers.BLOCK,
        mask_token_id=peers.MASK_ID, max_length=100, seed=0,
    )  # fmt: skip
    batch = batches.micro_batch(0)
    assert isinstance(batch, MicroBatch)
    rows = batches.drafter_rows(batch)
    table = torch.from_numpy(peers.embedding())
    with torch.no_grad():
        out = ours("full")(
            table[rows.block_ids][None], torch.from_numpy(peers.states())[None], rows.layout, "sdpa"
        )
    options = LossOptions(block_size=peers.BLOCK, kind=kind, gamma=4.0, chunk_rows=3)
    sums = block_loss(
        out[0], rows.labels, rows.supervised, rows.slot, lambda h: h @ table.T, options
    )
    # SpecForge divides D-PACE by the number of rows, here one.
    value = float(sums.loss) / (float(sums.divisor) if kind == "ce" else 1.0)
    assert value == pytest.approx(frozen["specforge_losses"][theirs], rel=1e-5)


@pytest.mark.parametrize(("kind", "theirs"), [("dpace", "dpace"), ("ce", "fixed-exp-decay")])
def test_losses_equal_speculators(frozen: dict, kind: str, theirs: str) -> None:
    """Of one row, given the same labels; it divides by the supervised slots, whatever the weights.

    Its own labels are the target's choices, which tests/benchmarks/quality.py can train on.
    """
    anchors = torch.tensor(peers.ANCHORS)[:, None] + torch.arange(peers.BLOCK)
    slot = torch.arange(peers.BLOCK).repeat(len(peers.ANCHORS))
    supervised = (anchors.flatten() < peers.LENGTH) & (slot > 0)
    labels = torch.from_numpy(peers.tokens())[anchors.flatten().clamp_max(peers.LENGTH - 1)]
    sums = block_loss(
        torch.from_numpy(peers.block_logits()), labels, supervised, slot, lambda logits: logits,
        LossOptions(block_size=peers.BLOCK, kind=kind, gamma=4.0, chunk_rows=3),
    )  # fmt: skip
    value = float(sums.loss) / int(supervised.sum())
    assert value == pytest.approx(frozen["speculators_losses"][theirs], rel=1e-5)


def test_frozen_numbers_are_the_peers_own() -> None:
    script = Path(__file__).with_name("peers.py")
    done = subprocess.run(
        [oracle_python(), "-I", str(script)], capture_output=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    live, kept = json.loads(done.stdout), json.loads(FROZEN.read_text(encoding="utf-8"))
    assert live["specforge_masks"] == kept["specforge_masks"]
    assert live["speculators_mask"] == kept["speculators_mask"]
    for losses in ("specforge_losses", "speculators_losses"):
        assert live[losses] == pytest.approx(kept[losses], rel=1e-5)
    for kind, blocks in kept["official"].items():
        np.testing.assert_allclose(live["official"][kind], blocks, atol=1e-5)
