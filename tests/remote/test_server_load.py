"""The load of a server as its /metrics say it: a number that stands still is not shown as true."""

from __future__ import annotations

import pytest

from remote.supervisor.server_load import load_of

LABELS = '{engine_type="unified",model_name="m",tp_rank="0"}'


def said(**values: float) -> str:
    """As SGLang 0.5.17 says it on a GPU."""
    return "".join(
        f"# TYPE sglang:{name} gauge\nsglang:{name}{LABELS} {value}\n"
        for name, value in values.items()
    )


@pytest.mark.parametrize(
    ("running", "gauge", "wanted"),
    [
        (0.0, 0.0, None),  # never drafted, or drafts nothing at all
        (0.0, 1.0, None),  # what SGLang says with MTP when nothing runs
        (0.0, 3.75, None),  # of a batch that is over
        (8.0, 0.0, None),  # without speculation the gauge is there all the same
        (8.0, 3.75, 3.75),
        (8.0, 1.0, 1.0),  # no draft is taken: that is worth knowing
    ],
)
def test_an_acceptance_length_is_told_while_drafts_are_verified(
    running: float, gauge: float, wanted: float | None
) -> None:
    found = load_of(said(num_running_reqs=running, spec_accept_length=gauge, spec_num_steps=3.0))
    assert found.get("accept_length") == wanted
    assert found["running"] == running


def test_hits_of_the_cache_are_of_the_last_batch() -> None:
    assert "cache_hits" not in load_of(said(num_running_reqs=0.0, cache_hit_rate=0.9))
    assert load_of(said(num_running_reqs=1.0, cache_hit_rate=0.9))["cache_hits"] == 0.9


def test_vllm_has_names_of_its_own_and_several_series_count_once() -> None:
    text = "".join(
        f'vllm:{name}{{engine="{rank}"}} {value}\n'
        for name, value in (
            ("num_requests_running", 2.0), ("num_requests_waiting", 5.0),
            ("kv_cache_usage_perc", 0.5), ("generation_tokens_total", 10.0),
        )
        for rank in range(2)
    )  # fmt: skip
    found = load_of(text + "vllm:gpu_cache_usage_perc NaN\n")
    assert (found["running"], found["queued"], found["kv_used"]) == (2.0, 5.0, 0.5)
    assert (found["tokens"], found["moved"]) == (20.0, 20.0)
