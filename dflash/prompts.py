"""The prompt file: JSON lines of `{"id", "messages", "tools"?, "meta"?}`, checked before any use.

The whole file is read first: one bad line stops the run before a request is sent, so that a run
after the line is mended finds nothing half done.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.errors import InputInvalid
from dflash.files import read_jsonl

if TYPE_CHECKING:
    from pathlib import Path

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One conversation to be continued by the target."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None

    @property
    def digest(self) -> str:
        """What the model is asked, so that a changed prompt under an old id is noticed."""
        return digest_of(self.messages, self.tools)


def digest_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> str:
    text = json.dumps([messages, tools], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def load_prompts(
    path: Path, *, limit: int | None = None, system: str | None = None
) -> list[Prompt]:
    """Every prompt in file order; with `system`, put before those that have no system message."""
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for number, value in read_jsonl(path, "prompt file"):
        prompt = _prompt(value, path, number, system)
        if prompt.id in lines:
            raise _invalid(path, number, f"the id {prompt.id!r} that line {lines[prompt.id]} has")
        lines[prompt.id] = number
        prompts.append(prompt)
    if not prompts:
        raise InputInvalid(f"{path} holds no prompt", "Write one JSON object a line into it.")
    return prompts if limit is None else prompts[:limit]


def _prompt(value: dict[str, Any], path: Path, number: int, system: str | None) -> Prompt:
    name = value.get("id")
    if not isinstance(name, str) or not name:
        raise _invalid(path, number, f"an id of {name!r}, which is no text")
    messages = value.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _invalid(path, number, "no list of messages")
    for message in messages:
        _check_message(message, path, number)
    if messages[-1]["role"] == "assistant":
        raise _invalid(path, number, "an assistant's message at the end, nothing to answer")
    tools = value.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise _invalid(path, number, "tools that are no list")
    if system is not None and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return Prompt(id=name, messages=messages, tools=tools or None, meta=value.get("meta"))


def _check_message(message: Any, path: Path, number: int) -> None:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        found = message.get("role") if isinstance(message, dict) else message
        raise _invalid(path, number, f"a message with role {found!r}")
    # A template that meets null or a list of parts drops it without a word.
    if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
        raise _invalid(path, number, f"a {message['role']} message whose content is no text")


def _invalid(path: Path, number: int, found: str) -> InputInvalid:
    return InputInvalid(
        f"{path}:{number}: found {found}",
        f"Mend or remove line {number} and run the same command again.",
    )
