"""Paths and addresses that could not be meant are refused by `validate`, not hours later."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from runbook.plan.load import load_runbook
from runbook.plan.problems import PlanError
from runbook.steps import STEP_TYPES
from runbook.steps.base import parse_args

CASES = Path(__file__).parent / "cases"
ELSEWISE = {
    ("artifact", "files"),  # judged by the step, with words of its own
    ("check", "official_python"), ("venv", "python"),  # a name on the PATH will do
    ("serve", "model"), ("bench", "serve"),  # a name of a hub for engines that take one
    ("serve", "command"), ("shell", "argv"), ("shell", "cwd"), ("shell", "env"), ("venv", "env"),
    ("train", "recipe"), ("train", "extra"), ("serve", "extra"), ("plan", "extra"),
}  # fmt: skip
"""Arguments with a path in some case that may be relative, or is none."""


def every_path() -> list[Any]:
    found = {}
    for file in sorted(CASES.glob("*/*.json")):
        case, step = json.loads(file.read_text()), file.parent.name
        for name, value in case["args"].items() if "error" not in case else ():
            if (step, name) not in ELSEWISE and json.dumps(value).startswith(('"/', '["/')):
                found[step, name] = pytest.param(step, name, case["args"], id=f"{step}-{name}")
    return list(found.values())


@pytest.mark.parametrize(("step", "name", "args"), every_path())
def test_no_path_may_be_relative(step: str, name: str, args: dict[str, Any]) -> None:
    """A job would look from its folder, and its checks nowhere."""
    value = args[name]
    relative = [one[1:] for one in value] if isinstance(value, list) else value[1:]
    with pytest.raises(ValidationError, match="is not an absolute path"):
        parse_args(STEP_TYPES[step].Args, {**args, name: relative})


def test_the_paths_of_all_steps_were_looked_at() -> None:
    looked_at = {(param.values[0], param.values[1]) for param in every_path()}
    assert {
        ("generate", "out"), ("generate", "prompts"), ("model_copy", "source"),
        ("model_copy", "shm"), ("model_copy", "disk"), ("upload", "source"), ("download", "out"),
        ("s3_sync", "source"), ("venv", "dest"), ("bench", "out"), ("serve", "venv"),
    } <= looked_at  # fmt: skip


GENERATE = {"venv": "/v", "prompts": "/p", "servers": ["http://h:1"], "model": "m", "out": "/o"}
COPY = {"source": "/m", "shm": "/dev/shm/m", "disk": "/d"}


@pytest.mark.parametrize(
    ("step", "args", "said"),
    [
        ("venv", {"dest": "/v", "imports": ["a"], "lock": "bundled:cpu.lok"},
         "'bundled:cpu.lok' does not come with runbook; write bundled:cpu.lock"),
        ("venv", {"dest": "/v", "imports": ["a"], "lock": "/l", "plugins": ["bundled:gpu"]},
         "write bundled:cpu_platform"),
        ("generate", {**GENERATE, "prompts": "bundled:code"},
         "write bundled:code-and-reasoning.jsonl"),
        ("generate", {**GENERATE, "servers": ["127.0.0.1:30000"]}, "is not an address, such as"),
        ("generate", {**GENERATE, "prompts": "s3://"}, "is not an absolute path"),
        ("generate", {**GENERATE, "endpoint": "localhost:9000"}, "is not an address, such as"),
        ("model_copy", {**COPY, "source": "hub:"}, "hub:ID[@REVISION]"),
        ("model_copy", {**COPY, "source": "https://h/m"}, "hub:ID[@REVISION]"),
        ("s3_sync", {"venv": "/v", "source": "/s", "url": "s3://b/p", "until": ":complete"},
         "FILE[:KEY] of the folder"),
    ],
)  # fmt: skip
def test_what_could_not_be_meant_is_refused(step: str, args: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as refused:
        parse_args(STEP_TYPES[step].Args, args)
    assert said in str(refused.value)


@pytest.mark.parametrize("source", ["hub:Qwen/Qwen3-8B", "hub:gpt2@main", "s3://b/p", "/mnt/m"])
def test_every_source_of_a_model_is_taken(source: str) -> None:
    parse_args(STEP_TYPES["model_copy"].Args, {**COPY, "source": source})


def test_a_file_tells_the_place_and_the_list(tmp_path: Path) -> None:
    text = """\
version: 1
name: x
title: X
phases: {p: P}
hosts: {box: {title: B}}
tasks:
  t:
    title: T
    phase: p
    host: box
    step: generate
    with: {venv: /v, prompts: /p, servers: ["h:1"], model: m, out: out}
    done_when: [{rows_at_least: {glob: "out/*.jsonl", rows: 1}}]
"""
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(PlanError) as refused:
        load_runbook(tmp_path / "r.yaml")
    said = str(refused.value)
    assert "r.yaml:12:45: each of `servers`: 'h:1' is not an address" in said
    assert "`out`: 'out' is not an absolute path, such as ${host.work}/NAME" in said
    assert "r.yaml:13" in said
    assert "`glob`: 'out/*.jsonl' is not an absolute path" in said
