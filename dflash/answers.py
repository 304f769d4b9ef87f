"""One body of a chat completion as an answer: raw text, thought and content, exact ids. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dflash.outcomes import ServerWrong, Trouble, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

Api = Literal["sglang", "openai"]
OPEN, CLOSE = "<think>", "</think>"
END_MARK = re.compile(r"(<\|[^<>|]{1,40}\|>|</s>|<eos>|<end_of_turn>)\s*$")
OUTPUT_IDS = ("response_token_ids", "token_ids")
"""Of a choice, in SGLang 0.5.23 and in 0.5.17."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished completion as the server gave it."""

    completion: str
    reasoning: str | None
    content: str
    output_ids: list[int] | None
    input_ids: list[int] | None
    finish_reason: str
    matched_stop: int | str | None
    usage: dict[str, Any]

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens") or len(self.output_ids or ()))


def read_answer(value: dict[str, Any], api: Api, *, opened: bool = False) -> Answer:
    """Read a body; raises KeyError, TypeError and the like when it is none.

    Args:
        opened: The chat template ends the prompt with `<think>`, so an answer has no such tag.
    """
    choice = value["choices"][0]
    finish = choice["finish_reason"] or "stop"
    if finish == "abort":
        raise Unavailable(Trouble.ABORTED, "aborted by the server")
    message, usage = choice["message"], value.get("usage") or {}
    if message.get("tool_calls"):
        raise ServerWrong(
            "the server takes tool calls out of the text, so the text is not what was sampled",
            "Start it without --tool-call-parser.",
        )
    text = message.get("content") or ""
    split_off = message.get("reasoning_content") or message.get("reasoning")
    if split_off:
        completion = rejoined(split_off, text, finish=finish, usage=usage, opened=opened)
        reasoning, content = split_off, text
    else:
        completion = text
        reasoning, content = split_thinking(text)
    output_ids, input_ids = _ids(value, choice)
    if api == "sglang" and not _tells_ids(value, choice):
        raise ServerWrong(
            "the server returns no token ids",
            "Update it, or use --api openai and have the text encoded again.",
        )
    return Answer(
        completion=completion,
        reasoning=reasoning,
        content=content,
        output_ids=output_ids,
        input_ids=input_ids,
        finish_reason=finish,
        matched_stop=choice.get("matched_stop"),
        usage=usage,
    )


def rejoined(
    reasoning: str, content: str, *, finish: str, usage: Mapping[str, Any], opened: bool
) -> str:
    """The text as it was sampled, of what the server's reasoning parser made two parts of.

    A thought that was cut must not end here, or the drafter learns to end it. Cut right behind the
    closing tag looks the same from outside and is taken for cut inside.
    """
    head = ("" if opened else OPEN) + reasoning
    details = usage.get("completion_tokens_details") or {}
    thought = usage.get("reasoning_tokens") or details.get("reasoning_tokens")
    # Drafts behind the last token are counted too: 5 of 4, with SGLang's MTP.
    all_thought = thought is not None and thought >= (usage.get("completion_tokens") or 0)
    if not content and (finish == "length" or all_thought):
        return head
    return head + CLOSE + content


def split_thinking(text: str) -> tuple[str | None, str]:
    """Reasoning and content for people; training reads the ids or the raw text instead."""
    shown = END_MARK.sub("", text)
    before, closed, after = shown.partition(CLOSE)
    if closed:
        return before.removeprefix(OPEN), after
    if shown.lstrip().startswith(OPEN):
        return shown.lstrip().removeprefix(OPEN), ""
    return None, shown


def _ids(
    value: dict[str, Any], choice: dict[str, Any]
) -> tuple[list[int] | None, list[int] | None]:
    extension = value.get("sglext") or {}
    output = [choice.get(name) for name in OUTPUT_IDS] + [extension.get("output_ids")]
    prompt = choice.get("prompt_token_ids") or extension.get("input_ids")
    return _flat(next(filter(None, output), None)), _flat(prompt)


def _tells_ids(value: dict[str, Any], choice: dict[str, Any]) -> bool:
    """Whether it knows how; of an empty answer there are none."""
    extension = value.get("sglext") or {}
    return "output_ids" in extension or any(name in choice for name in OUTPUT_IDS)


def _flat(ids: Any) -> list[int] | None:
    """One list per choice, or the list itself; both shapes are sent."""
    if not ids:
        return None
    inner = ids[0] if isinstance(ids[0], list) else ids
    return [int(item) for item in inner] or None
