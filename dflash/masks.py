"""One completion record into ids and loss mask. Pure: no files, no clock.

The mask is 0 on the prompt, the generation prompt included, and 1 on everything the target
generated, its end token included. Both halves are put together from ids, so no text is ever
searched for a boundary: with Qwen3 the opening `<think>` is generated, from Qwen3.5 on it belongs
to the prompt, and this holds for both without knowing which one it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dflash.errors import InputInvalid

if TYPE_CHECKING:
    from dflash.tokenizer import TargetTokenizer

Overlong = Literal["drop", "truncate", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Prompt and completion as ids, and how each came to be."""

    id: str
    prompt_ids: list[int]
    completion_ids: list[int]
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


def sample_of(
    record: dict[str, Any], tokenizer: TargetTokenizer, template_kwargs: dict[str, Any]
) -> Sample:
    """Exact ids where the record has them, the template and the raw text where not."""
    notes: list[str] = []
    prompt_ids = record.get("input_ids")
    if prompt_ids:
        notes.append("prompt_exact")
    else:
        prompt_ids = tokenizer.encode_prompt(
            record["messages"], record.get("tools"), template_kwargs
        )
        notes.append("prompt_rendered")
    completion_ids = list(record.get("output_ids") or ())
    if completion_ids:
        notes.append("completion_exact")
    else:
        completion_ids = _encode_text(record, prompt_ids, tokenizer)
        notes.append("completion_encoded")
    _end(record, completion_ids, tokenizer, notes)
    if not completion_ids:
        raise InputInvalid(
            f"row {record['id']!r} has no generated token (finish_reason "
            f"{record.get('finish_reason')!r}): its loss mask would be all zeros",
            "Remove the row from its shard, or generate it again.",
        )
    if tokenizer.think_close is not None:
        notes.append(
            "thinking_closed" if tokenizer.think_close in completion_ids else "no_thinking_closed"
        )
    return Sample(
        id=record["id"],
        prompt_ids=list(prompt_ids),
        completion_ids=completion_ids,
        notes=tuple(notes),
    )


def _encode_text(
    record: dict[str, Any], prompt_ids: list[int], tokenizer: TargetTokenizer
) -> list[int]:
    text = record.get("completion") or ""
    open_tag = tokenizer.think_open
    if open_tag is not None and open_tag in prompt_ids[-2:] and text.startswith("<think>"):
        # The prompt has the tag already; a server that splits thinking off makes us write it twice.
        text = text.removeprefix("<think>").removeprefix("\n")
    return tokenizer.encode_completion(text)


def _end(
    record: dict[str, Any], ids: list[int], tokenizer: TargetTokenizer, notes: list[str]
) -> None:
    """A completion that stopped by itself ends with the token that stopped it."""
    if record.get("finish_reason") == "length":
        notes.append("truncated")
        return
    stop = record.get("matched_stop")
    end = stop if isinstance(stop, int) else tokenizer.eos_token_id
    if isinstance(stop, str) or end is None:
        return  # a stop string: the model did not end its turn
    if not ids or (ids[-1] != end and ids[-1] != tokenizer.eos_token_id):
        ids.append(end)
        notes.append("end_token_added")


def fit(sample: Sample, *, max_length: int | None, overlong: Overlong) -> Sample | None:
    """The sample within the limit, or None when it is to be dropped."""
    if max_length is None or len(sample) <= max_length or overlong == "keep":
        return sample
    room = max_length - len(sample.prompt_ids)
    if overlong == "drop" or room < 1:
        return None
    return Sample(
        id=sample.id,
        prompt_ids=sample.prompt_ids,
        completion_ids=sample.completion_ids[:room],
        notes=(*sample.notes, "cut"),
    )
