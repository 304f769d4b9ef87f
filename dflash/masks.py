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
    from collections.abc import Callable, Sequence

    import numpy as np

    from dflash.tokenizer import TargetTokenizer

Overlong = Literal["drop", "truncate", "keep"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Prompt and completion as ids, and how each came to be."""

    id: str
    prompt_ids: np.ndarray
    completion_ids: np.ndarray
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.completion_ids)


def sample_of(
    record: dict[str, Any], tokenizer: TargetTokenizer, template_kwargs: dict[str, Any]
) -> Sample:
    """Exact ids where the record has them, the template and the raw text where not."""
    (found,) = samples_of([record], tokenizer, template_kwargs)
    if isinstance(found, InputInvalid):
        raise found
    return found


def samples_of(
    records: Sequence[dict[str, Any]], tokenizer: TargetTokenizer, template_kwargs: dict[str, Any]
) -> list[Sample | InputInvalid]:
    """Each record's sample, or what is wrong with it.

    Rendering and encoding by turns, a few dozen records at a time: each finds its tables still in
    the processor's cache, which makes the whole a quarter faster.
    """
    texts = [_tried(_prompt_text, record, tokenizer, template_kwargs) for record in records]
    prompts = [_tried(_prompt_ids, text, tokenizer) for text in texts]
    answers = [
        _tried(_answer_ids, prompt, record, tokenizer)
        for prompt, record in zip(prompts, records, strict=True)
    ]
    return [
        _tried(_joined, answer, prompt, record, tokenizer)
        for answer, prompt, record in zip(answers, prompts, records, strict=True)
    ]


def _tried(stage: Callable[..., Any], before: Any, *more: Any) -> Any:
    """The stage's result; an error of this stage or of the one before instead."""
    if isinstance(before, InputInvalid):
        return before
    try:
        return stage(before, *more)
    except InputInvalid as error:
        return error


def _prompt_text(
    record: dict[str, Any], tokenizer: TargetTokenizer, template_kwargs: dict[str, Any]
) -> np.ndarray | tuple[str, str]:
    if record.get("input_ids"):
        return _exact(record, "input_ids")
    return tokenizer.render_safely(record["messages"], record.get("tools"), template_kwargs)


def _prompt_ids(text: np.ndarray | tuple[str, str], tokenizer: TargetTokenizer) -> np.ndarray:
    return tokenizer.encode_rendered(*text) if isinstance(text, tuple) else text


def _answer_ids(
    prompt_ids: np.ndarray, record: dict[str, Any], tokenizer: TargetTokenizer
) -> np.ndarray:
    if record.get("output_ids"):
        return _exact(record, "output_ids")
    return tokenizer.encode_completion(_own_text(record, prompt_ids, tokenizer))


def _joined(
    completion_ids: np.ndarray,
    prompt_ids: np.ndarray,
    record: dict[str, Any],
    tokenizer: TargetTokenizer,
) -> Sample:
    import numpy as np

    notes = ["prompt_exact" if record.get("input_ids") else "prompt_rendered"]
    notes += ["completion_exact" if record.get("output_ids") else "completion_encoded"]
    if record.get("finish_reason") == "length":
        notes.append("truncated")
    elif (end := _missing_end(record, completion_ids, tokenizer)) is not None:
        completion_ids = np.append(completion_ids, np.int32(end))
        notes.append("end_token_added")
    if not len(completion_ids):
        raise InputInvalid(
            f"row {record['id']!r} has no generated token (finish_reason "
            f"{record.get('finish_reason')!r}): its loss mask would be all zeros",
            "Remove the row from its shard, or generate it again.",
        )
    if tokenizer.think_close is not None:
        closed = bool((completion_ids == tokenizer.think_close).any())
        notes.append("thinking_closed" if closed else "no_thinking_closed")
    return Sample(
        id=record["id"], prompt_ids=prompt_ids, completion_ids=completion_ids, notes=tuple(notes)
    )


def _exact(record: dict[str, Any], key: str) -> np.ndarray:
    import numpy as np

    try:
        ids = np.array(record[key])
    except ValueError:  # lists within lists
        ids = np.array([""])
    if ids.ndim != 1 or ids.dtype.kind != "i":
        raise InputInvalid(f"row {record['id']!r}: {key} is no list of whole numbers")
    return ids


def _own_text(record: dict[str, Any], prompt_ids: np.ndarray, tokenizer: TargetTokenizer) -> str:
    text: str = record.get("completion") or ""
    open_tag = tokenizer.think_open
    if open_tag is not None and open_tag in prompt_ids[-2:] and text.startswith("<think>"):
        # The prompt has the tag already; a server that splits thinking off makes us write it twice.
        text = text.removeprefix("<think>").removeprefix("\n")
    return text


def _missing_end(record: dict[str, Any], ids: np.ndarray, tokenizer: TargetTokenizer) -> int | None:
    """A completion that stopped by itself ends with the token that stopped it."""
    stop = record.get("matched_stop")
    end = stop if isinstance(stop, int) else tokenizer.eos_token_id
    if isinstance(stop, str) or end is None:
        return None  # a stop string: the model did not end its turn
    return None if len(ids) and ids[-1] in (end, tokenizer.eos_token_id) else end


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
