"""What an audit notices in one row. Pure functions over text and ids; nothing here knows files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from dflash.answers import split_thinking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dflash.tokenizer import TargetTokenizer

LOOP_UNITS = 120  # a loop must fill this many tokens (or words) at the end of a row
LOOP_PERIOD = 60
NGRAM = 4
DISTINCT_SHARE = 0.2  # of n-grams; prose has above 0.9, tables and code above 0.4
ECHO_CHARACTERS = 40  # shorter prompts are repeated by good answers too


class Thinking(StrEnum):
    """How the thought of one row ends. `bare_close` is settled once all rows are seen."""

    NONE = "none"
    CLOSED = "closed"
    EMPTY = "empty"
    UNCLOSED = "unclosed"
    ORPHAN = "orphan"
    BARE_CLOSE = "bare_close"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """One row as the audit sees it, from either kind of folder."""

    id: str
    split: str
    messages: list[dict[str, Any]] | None
    prompt_ids: Sequence[int]
    completion_ids: Sequence[int]
    completion: str | None  # raw, with markers; None when there is no tokenizer to decode with
    finish_reason: str | None
    loss_tokens: int
    length: int
    tools: Sequence[dict[str, Any]] | None = None  # as offered; None when that is not known
    other_prompt: bool | None = None  # the template renders other ids than the server recorded

    @property
    def truncated(self) -> bool:
        return self.finish_reason == "length"


def thinking_of(sight: Sight, tokenizer: TargetTokenizer | None) -> Thinking:
    """By ids where the tokenizer knows the tags, by text otherwise."""
    if tokenizer is not None and tokenizer.knows_thinking and len(sight.prompt_ids):
        return _thinking_by_ids(sight, tokenizer)
    text = sight.completion or ""
    opened, closed = text.find("<think>"), text.find("</think>")
    if opened < 0:
        return Thinking.NONE if closed < 0 else Thinking.BARE_CLOSE
    if closed < opened:
        return Thinking.UNCLOSED if closed < 0 else Thinking.ORPHAN
    if text.count("</think>") > text.count("<think>"):
        return Thinking.ORPHAN
    blank = not text[opened + len("<think>") : closed].strip()
    return Thinking.EMPTY if blank else Thinking.CLOSED


def _thinking_by_ids(sight: Sight, tokenizer: TargetTokenizer) -> Thinking:
    opening, closing = tokenizer.think_open, tokenizer.think_close
    assert opening is not None  # the two come together
    assert closing is not None
    ids = list(sight.completion_ids)
    depth = int(opening in list(sight.prompt_ids)[-3:] and closing not in sight.prompt_ids[-3:])
    opens, closes = ids.count(opening) + depth, ids.count(closing)
    if not opens:
        return Thinking.ORPHAN if closes else Thinking.NONE
    if not closes:
        return Thinking.UNCLOSED
    start = 0 if depth else ids.index(opening) + 1
    end = ids.index(closing)
    if end < start or closes > opens:
        return Thinking.ORPHAN
    return Thinking.CLOSED if tokenizer.decode(ids[start:end]).strip() else Thinking.EMPTY


def is_empty(sight: Sight) -> bool:
    """Nothing but markers and white space after the thought, or one token in all."""
    if sight.completion is None:
        return sight.loss_tokens <= 1
    if sight.truncated and "</think>" not in sight.completion:
        return False  # cut inside its thought: that is truncation
    return not split_thinking(sight.completion)[1].strip()


def units_of(sight: Sight) -> Sequence[Any]:
    """What repetition is looked for in."""
    return sight.completion_ids if len(sight.completion_ids) else (sight.completion or "").split()


def is_degenerate(units: Sequence[Any]) -> bool:
    """A loop at the end, or hardly any new n-gram in the whole."""
    return _loops(units) or _distinct_share(units) < DISTINCT_SHARE


def _loops(units: Sequence[Any]) -> bool:
    # The very end may be an end token or a cut word: look at what stands before it.
    tail = list(units[-LOOP_UNITS - 2 : -2])
    if len(tail) < LOOP_UNITS:
        return False
    return any(
        tail[period:] == tail[:-period] for period in range(1, min(LOOP_PERIOD, len(tail) // 2))
    )


def _distinct_share(units: Sequence[Any]) -> float:
    count = len(units) - NGRAM + 1
    if count < LOOP_UNITS:
        return 1.0
    plain = list(units)
    return len({tuple(plain[n : n + NGRAM]) for n in range(count)}) / count


def echoes_prompt(sight: Sight) -> bool:
    """The answer has the whole last message in it, word for word."""
    if not sight.messages or sight.completion is None:
        return False
    last = sight.messages[-1].get("content")
    text = last.strip() if isinstance(last, str) else ""
    return len(text) >= ECHO_CHARACTERS and text in sight.completion


def digest(value: Any) -> int:
    """64 bits to know a text or a row of ids again; a chance match needs 4 billion rows."""
    if not isinstance(value, str):
        value = ",".join(map(str, value))
    found = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(found, "big")


def prompt_digest(sight: Sight) -> int:
    if sight.messages is not None:
        return digest("\0".join(f"{m.get('role')}\1{m.get('content')}" for m in sight.messages))
    return digest(sight.prompt_ids)


def answer_digest(sight: Sight) -> int:
    return digest(sight.completion if sight.completion is not None else sight.completion_ids)
