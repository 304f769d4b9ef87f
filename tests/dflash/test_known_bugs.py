"""Thirty bugs that other trainers and engines of such drafters have had; each is a test of ours.

The report is named by its project and number there; what it takes to have it is in docs/dflash.md.
"""

from __future__ import annotations

import ast
import functools
import pathlib
import warnings

import numpy as np
import pytest
import torch

from dflash.batches import Batches
from dflash.drafter import Drafter
from dflash.shards import Row
from tests.support.tiny_targets import HIDDEN, VOCAB, tiny_drafter_config

HERE = pathlib.Path(__file__).parent
TABLE = """
1 SpecForge#470 drafter no_block_sees_the_anchor_state_or_later
2 SpecForge#471 target states_pair_with_their_own_token
3 SpecForge#473 drafter training_forward_is_the_inference_forward
4 SpecForge#427 drafter slots_see_each_other_in_full_layers_and_only_backwards_in_causal_ones
5 vllm#40727 target tap_i_is_the_output_of_layer_i
6 TorchSpec#87 target own_norm_and_head_give_the_model_s_logits
7 TorchSpec#169 target own_norm_and_head_give_the_model_s_logits
8 speculators#1090 target own_norm_and_head_give_the_model_s_logits
9 speculators#613 check a_partial_rotary_factor_fails_where_it_is_applied
10 ModelOpt#2221 export a_misread_config_is_named_per_engine
11 speculators#705 published what_would_be_trained_on_wrongly_is_refused
12 sglang#32204 config the_last_layer_is_a_valid_tap
13 sglang#37475 export a_config_that_leaves_something_to_guess_is_refused
14 vllm#47453 export every_engine_reads_what_was_trained
15 NeMo#2461 config mask_token_is_a_row_beyond_the_tokenizer_or_an_unused_special
16 speculators#346 masks empty_think_block_is_trained_only_where_it_was_written
17 NeMo#2532 known_bugs a_second_batch_compiles_nothing
18 speculators#823 anchors sample_is_sorted_distinct_eligible_and_as_large_as_allowed
19 speculators#1066 checkpoint all_parameters_train_at_one_rate_and_only_matrices_decay
20 z-lab#172 decode lossless_with_any_pattern_of_rejections
21 lmdeploy#4991 drafter fp16_states_do_not_overflow_in_fc
22 axolotl#3453 batches target_rows_are_right_padded_one_document_each
23 z-lab#115 checkpoint a_gradient_that_is_not_finite_changes_nothing_and_is_named
24 vllm-ascend#11374 drafter names_are_the_published_ones_and_nothing_is_doubled
25 hipfire#483 known_bugs slot_0_is_the_anchor_and_all_others_are_masks
26 llm-scaler#620 config export_has_both_spellings_and_no_partial_rotary
27 z-lab#133 evaluate report
28 speculators#686 attention sdpa_equals_eager_forward_and_backward
29 NeMo#3605 attention flex_gives_way_to_sdpa_with_one_warning
30 speculators#901 batches a_block_ends_with_its_document
"""
"""Number, report, the file and the test without their `test_`."""
BUGS = {int(line.split()[0]): line.split()[1:] for line in TABLE.strip().splitlines()}


@functools.cache
def names_in(name):
    tree = ast.parse((HERE / f"test_{name}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("number", BUGS)
def test_the_bug_has_its_test(number):
    report, name, test = BUGS[number]
    assert f"test_{test}" in names_in(name), f"{report} lost its test"


def test_there_are_thirty():
    assert sorted(BUGS) == list(range(1, 31))


class Rows:
    """Documents of one length with answers of uneven length, some shorter than the anchors."""

    lengths = np.array([20] * 4)

    def __len__(self):
        return len(self.lengths)

    def row(self, index):
        length = int(self.lengths[index])
        mask = np.zeros(length, dtype=np.uint8)
        mask[3 + 4 * index :] = 1
        ids = np.random.default_rng(index).integers(4, VOCAB, length).astype(np.int32)
        return Row(id=str(index), input_ids=ids, loss_mask=mask)


def batches(**changes):
    options = {"batch_docs": 2, "anchors_per_doc": 6, "block_size": 4, "mask_token_id": 3,
               "max_length": 40, "seed": 0}  # fmt: skip
    return Batches(Rows(), **(options | changes))


def test_slot_0_is_the_anchor_and_all_others_are_masks():
    made = batches()
    batch = made.micro_batch(0)
    rows = made.drafter_rows(batch)
    ids = rows.block_ids.view(-1, 4)
    assert (ids[:, 1:] == 3).all()
    texts = {int(i): Rows().row(int(i)).input_ids for i in range(4)}
    anchors = rows.layout.block_anchor.view(-1, 4)[:, 0].tolist()
    for anchor, token in zip(anchors, ids[:, 0].tolist(), strict=True):
        assert any(anchor < len(text) and text[anchor] == token for text in texts.values())


@pytest.mark.parametrize("fixed", [True, False])
def test_a_second_batch_compiles_nothing(fixed):
    """Anchors differ in number from batch to batch; only with fixed shapes that costs nothing."""
    from torch._dynamo.testing import CompileCounter

    torch._dynamo.reset()
    counter, made = CompileCounter(), batches()
    drafter = Drafter(tiny_drafter_config(num_layers=1))
    compiled = torch.compile(drafter, backend=counter, dynamic=False)
    seen = []
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of the compiler, about itself
        for number in range(2):
            rows = made.drafter_rows(made.micro_batch(number), fixed=fixed)
            slots, context = len(rows.slot), len(rows.layout.context_doc)
            compiled(
                torch.zeros(1, slots, HIDDEN), torch.zeros(1, context, 3 * HIDDEN), rows.layout,
                "sdpa",
            )  # fmt: skip
            seen.append(counter.frame_count)
    torch._dynamo.reset()
    assert (seen[0] == seen[1]) is fixed
