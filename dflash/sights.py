"""Rows of completions or of a tokenized set as the audit sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.completions import (
    MANIFEST,
    read_manifest,
    read_records,
    shard_paths,
    template_kwargs_of,
)
from dflash.errors import InputInvalid
from dflash.files import jsonl_lines
from dflash.measures import Sight
from dflash.parts import record_of
from dflash.sources import open_source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from dflash.tokenizer import TargetTokenizer

RENDERED = 1000
"""So many prompts are rendered again: what is wrong with the template is wrong in each."""


def of_completions(path: Path, tokenizer: TargetTokenizer | None = None) -> Iterator[Sight]:
    settings = read_manifest(path)["settings"] if (path / MANIFEST).is_file() else {}
    kwargs = template_kwargs_of(settings, None)
    for number, record in enumerate(_records(path)):
        yield sight_of(record, tokenizer if number < RENDERED else None, kwargs)


def sight_of(
    record: dict[str, Any], tokenizer: TargetTokenizer | None, template_kwargs: dict[str, Any]
) -> Sight:
    """One completion; with a tokenizer its prompt is rendered and compared with the recorded."""
    usage = record.get("usage") or {}
    output, prompt = record.get("output_ids") or [], record.get("input_ids") or []
    made = len(output) or int(usage.get("completion_tokens") or 0)
    differs = None
    if tokenizer is not None and prompt and record.get("messages"):
        rendered = tokenizer.encode_prompt(record["messages"], record.get("tools"), template_kwargs)
        differs = rendered.tolist() != prompt
    return Sight(
        id=record["id"],
        split="",
        messages=record.get("messages"),
        tools=record.get("tools") or [],
        prompt_ids=prompt,
        completion_ids=output,
        completion=record.get("completion") or "",
        finish_reason=record.get("finish_reason"),
        loss_tokens=made,
        length=made + (len(prompt) or int(usage.get("prompt_tokens") or 0)),
        other_prompt=differs,
    )


def _records(path: Path) -> Iterator[dict[str, Any]]:
    """Of a folder of ours, or of any with JSON lines."""
    if (path / MANIFEST).is_file():
        yield from read_records(shard_paths(path, inflight=True))
        return
    for entry in open_source(str(path)).entries:
        for number, line in jsonl_lines(path / entry.file, "completions"):
            try:
                yield record_of(line)
            except InputInvalid as error:
                raise InputInvalid(
                    f"{path / entry.file}:{number}: {error.message}",
                    "Mend or remove that line; `dflash tokenize` counts all such lines.",
                ) from error


def of_tokenized(
    path: Path, tokenizer: TargetTokenizer | None, end_ids: set[int | None]
) -> Iterator[Sight]:
    manifest = shards.read_manifest(path, {"tokenizer": shards.TOKENIZER})
    made_by = manifest["tokenizer"]["fingerprint"]
    if tokenizer is not None and tokenizer.fingerprint != made_by:
        raise InputInvalid(
            f"{path} was tokenized by another tokenizer or chat template than {tokenizer.path} has",
            "Name the folder that `dflash tokenize --tokenizer` was given, or tokenize again.",
        )
    for split in sorted(manifest["splits"]):
        rows = shards.TokenizedSet(path, split)
        for number in range(len(rows)):
            row = rows.row(number)
            if not row.loss_mask.any():
                raise InputInvalid(
                    f"row {row.id!r} of {path}/{split} has a loss mask of zeros only",
                    "Tokenize the completions again.",
                )
            edge = int(row.loss_mask.argmax())
            ids = row.input_ids[edge:][row.loss_mask[edge:] == 1].tolist()
            yield Sight(
                id=row.id,
                split=split,
                messages=None,
                tools=None,
                prompt_ids=row.input_ids[:edge].tolist(),
                completion_ids=ids,
                completion=tokenizer.decode(ids) if tokenizer else None,
                finish_reason="stop" if ids[-1] in end_ids else "length",
                loss_tokens=len(ids),
                length=len(row.input_ids),
            )
