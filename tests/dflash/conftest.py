"""Real tokenizers, loaded once, a second or more each; servers and prompts for `generate`."""

from __future__ import annotations

import functools
import json
import pathlib
import shutil
import signal
import subprocess

import pytest

from dflash.tokenizer import TargetTokenizer
from tests.support.completing import ROOT, Server

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
QWEN_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
QWEN_TOKENS += ["<think>", "</think>"]


@functools.cache
def loaded(path):
    return TargetTokenizer(path)


@pytest.fixture(scope="session")
def load_tokenizer():
    """The loader itself, for tests that cannot take a fixture's value."""
    return loaded


@pytest.fixture(scope="session")
def smol():
    return loaded(ASSETS / "smollm2")


@pytest.fixture(scope="session")
def qwen(tmp_path_factory):
    """Qwen's real templates over SmolLM2's vocabulary, which has the same turn markers."""
    found = {}
    for name in ("qwen3", "qwen3_6", "qwen3_8"):
        folder = tmp_path_factory.mktemp(name) / "model"
        shutil.copytree(ASSETS / "smollm2", folder)
        shutil.copy(ASSETS / "chat-templates" / f"{name}.jinja", folder / "chat_template.jinja")
        value = json.loads((folder / "tokenizer.json").read_text())
        model = dict(value["added_tokens"][-1], special=False)
        value["added_tokens"] += [
            dict(model, id=49152 + number, content=content)
            for number, content in enumerate(QWEN_TOKENS)
        ]
        (folder / "tokenizer.json").write_text(json.dumps(value))
        found[name] = loaded(folder)
    return found


@pytest.fixture(autouse=True)
def no_handlers_left():
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def servers(tmp_path):
    started = []

    def start(*options):
        folder = tmp_path / f"server-{len(started)}"
        folder.mkdir()
        started.append(Server(folder, *options))
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def prompts(tmp_path):
    path = tmp_path / "prompts.jsonl"

    def write(count, *, text="question {}"):
        rows = [
            {"id": f"p{n:03d}", "messages": [{"role": "user", "content": text.format(n)}]}
            for n in range(count)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


@pytest.fixture
def start():
    """Starts the command as a process, which does not outlive the test."""
    jobs = []

    def begin(words, **kwargs):
        jobs.append(subprocess.Popen(words, cwd=ROOT, **kwargs))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.kill()
        job.communicate()
