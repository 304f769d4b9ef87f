"""Flags of SGLang releases: a wrong one is refused by name, before anything is started."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from runbook.serving.flags import VERSIONS, flags_of, problem_of
from runbook.steps.serve_args import ServeArgs

BASE = {"venv": "/v", "model": "/m", "served_name": "m", "port": 30000}


@pytest.mark.parametrize(
    ("extra", "version", "said"),
    [
        (["--mamba-scheduler-strategy", "auto"], "0.5.23",
         "no flag of SGLang 0.5.23; there it is `--mamba-radix-cache-strategy`"),
        (["--cuda-graph-max-bs=8"], "0.5.23", "`--cuda-graph-max-bs-decode` or"),
        (["--max-model-len", "8"], "0.5.23", "`--context-length`"),
        (["--nsa-decode-backend", "x"], "0.5.23", "`--dsa-decode-backend`"),
        (["--mem-fraction-statik", "0.8"], "0.5.23", "`--mem-fraction-static`"),
        (["--mem-fraction", "0.8"], "0.5.23", "`--mem-fraction-static`"),
        (["--mem-frac", "0.8"], "0.5.23", "there it is `--mem-fraction-static`"),
        (["--port", "1"], "0.5.23", "is set by the step: use `port`"),
        (["--weight-version", "x"], "0.5.23", "is set by the step"),
        (["--delete-everything"], "0.5.23", "no flag of SGLang 0.5.23"),
    ],
)  # fmt: skip
def test_a_wrong_flag_is_refused_with_its_near_name(
    extra: list[str], version: str, said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        ServeArgs.model_validate({**BASE, "extra": extra, "version": version})
    assert said in str(refused.value)


def test_names_go_by_the_release() -> None:
    old = ["--mamba-scheduler-strategy", "auto", "--cuda-graph-max-bs", "8"]
    assert problem_of(old, "0.5.17") is None
    assert problem_of(old, "0.5.23") is not None
    assert problem_of(old, "0.6.0") is None, "a release that we do not know is not judged"
    assert all(len(flags_of(version)) > 400 for version in VERSIONS)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"speculation": "mtp"}, "limits itself to 48 requests: give max_running_requests"),
        ({"speculation": "dflash", "max_running_requests": 8}, "needs `drafter`"),
        ({"drafter": "/d"}, "no meaning without `speculation: dflash`"),
        ({"hierarchical_cache": True}, "give hicache_gb"),
        ({"hicache_gb": 4}, "no meaning without `hierarchical_cache: true`"),
        ({"hierarchical_cache": True, "hicache_gb": 4, "radix_cache": False}, "needs the radix"),
        ({"tp": 2, "gpus": [0]}, "1 gpus and tp 2"),
        ({"gpus": [0, 1]}, "2 gpus and tp 1"),
        ({"engine": "command"}, "engine command needs `command`"),
        ({"engine": "command", "command": ["x", "--port", "{prt}"]}, "{prt}, which is nothing"),
        ({"engine": "command", "command": ["x"]}, "must say the port"),
        ({"engine": "command", "command": ["{port"]}, "for a brace"),
        ({"command": ["x"]}, "no meaning with engine sglang"),
        ({"venv": ""}, "`venv` is missing"),
        ({"version": "new"}, "not a release"),
        ({"host": "not a host"}, "is not an address or a host name"),
        ({"venv": "envs/serve"}, "'envs/serve' is not an absolute path"),
    ],
)
def test_what_contradicts_itself_is_refused_before_a_model_is_loaded(
    given: dict[str, object], said: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        ServeArgs.model_validate({**BASE, **given})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:30000"), ("::", "http://127.0.0.1:30000"),
     ("fd00::7", "http://[fd00::7]:30000"), ("gpu-3.lan", "http://gpu-3.lan:30000")],
)  # fmt: skip
def test_the_address_that_clients_get(host: str, url: str) -> None:
    assert ServeArgs.model_validate({**BASE, "host": host}).url == url
