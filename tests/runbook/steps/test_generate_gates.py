"""What a plan says of the gates that end a run of `generate` early."""

from __future__ import annotations

import pytest

from runbook.steps.generate import GenerateArgs, gates_told

USUAL = (
    "max_empty=0.1, max_identical=0.5, max_mode_share=0.5, max_truncated=0.5, "
    "max_repetition=0.5, max_tool_loop=0.1"
)
PLAIN = {"venv": "/v", "prompts": "/p", "servers": ("http://a",), "model": "m", "out": "/o"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({}, f"gate: after 500 rows, and again after as many: {USUAL}"),
        ({"thinking": "on", "audit_after": 50},
         f"gate: after 50 rows, and again after as many: {USUAL}, thinking=0.9"),
        ({"gates": {"max_empty": 0, "thinking": "required"}},
         ("gate: after 500 rows, and again after as many: "
         f"{USUAL.replace('max_empty=0.1', 'max_empty=0')}, thinking=required")),
        ({"audit_after": 0}, "no early audit: nothing looks at the rows before the end"),
    ],
)  # fmt: skip
def test_the_plan_says_what_ends_the_run(more, told):
    assert gates_told(GenerateArgs(**PLAIN, **more)) == (told,)
