"""The prompts that come with the package can be used as they are, and their licences are there."""

from __future__ import annotations

import pathlib

import pytest

from dflash.prompts import load_prompts

FOLDER = pathlib.Path(__file__).parents[2] / "runbook" / "library" / "prompts"
COUNTS = {"code-and-reasoning": 100, "human-eval": 164, "reasoning": 204, "tool-calling": 200}


@pytest.mark.parametrize("name", COUNTS)
def test_prompts_render_with_every_template(name, qwen):
    prompts = load_prompts(FOLDER / f"{name}.jsonl")
    assert len(prompts) == COUNTS[name]
    for prompt in prompts[::8]:
        for template in ("qwen3", "qwen3_6", "qwen3_8"):
            text = qwen[template].render(prompt.messages, prompt.tools)
            assert prompt.messages[-1]["content"].strip() in text
            for tool in prompt.tools or ():
                assert tool["function"]["name"] in text


def test_tools_have_the_types_of_json_schema():
    known = {"object", "string", "integer", "number", "boolean", "array", "null"}

    def types(value, *, names=False):
        """Of schemas; a parameter may itself be called `type`."""
        if isinstance(value, dict):
            for key, part in value.items():
                if key == "type" and not names:
                    yield part
                else:
                    yield from types(part, names=key == "properties")
        elif isinstance(value, list):
            for part in value:
                yield from types(part)

    for prompt in load_prompts(FOLDER / "tool-calling.jsonl"):
        for tool in prompt.tools or ():
            assert set(types(tool["function"]["parameters"])) <= known, prompt.id


def test_every_file_and_source_has_its_licence():
    told = (FOLDER / "README.md").read_text(encoding="utf-8")
    for path in FOLDER.glob("*.jsonl"):
        assert f"`{path.name}`" in told
    for path in FOLDER.glob("LICENSE.*"):
        assert f"`{path.name}`" in told
        assert path.stat().st_size > 500
