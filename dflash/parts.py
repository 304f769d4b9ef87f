"""One input file of completions into one shard per split, and a part file that says from what.

A part is kept while its input and its recipe are the same. Same input, same bytes: no clock, no
random order, whichever process makes it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.errors import DflashError, InputInvalid
from dflash.files import jsonl_lines, read_json, write_json
from dflash.masks import Overlong, Sample, fit, samples_of
from dflash.tokenizer import TargetTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dflash.sources import Entry
    from dflash.splits import Splits

CHECKED_ROWS = 16  # per file, recorded ids against recorded text: a wrong tokenizer shows at once
TOGETHER = 32  # rows that go through rendering and encoding side by side
PARTS = "parts"
PART = {
    "input": str, "recipe": dict, "rows": int, "counts": {"*": int},
    "splits": {"*": {"shards": [shards.SHARD], "lengths": [int], "loss_tokens": [int]}},
}  # fmt: skip
"""What is kept of each file of completions."""
BAD_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides the bytes of a part; a part made by another recipe is made again."""

    tokenizer: str
    fingerprint: str
    template_kwargs: dict[str, Any]
    max_length: int | None
    overlong: Overlong
    splits: Splits
    skip_bad: bool = False
    twin: bool = True  # changes the speed, never the bytes

    def as_dict(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "template_kwargs": self.template_kwargs,
            "max_length": self.max_length,
            "overlong": self.overlong,
            "splits": self.splits.as_dict(),
            "skip_bad": self.skip_bad,
        }


class WrongTokenizer(DflashError):
    """Not one bad row: nothing of this input can be used with this tokenizer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """What was wrong in one file: how many rows, and the first few in words."""

    file: str
    count: int
    first: tuple[str, ...]


_TOKENIZERS: dict[tuple[str, str, bool], TargetTokenizer] = {}


def tokenizer_of(recipe: Recipe) -> TargetTokenizer:
    """Loaded once per process: it takes seconds, a file takes less."""
    key = (recipe.tokenizer, recipe.fingerprint, recipe.twin)
    if key not in _TOKENIZERS:
        _TOKENIZERS[key] = TargetTokenizer(recipe.tokenizer, fast=recipe.twin)
    return _TOKENIZERS[key]


def remember(tokenizer: TargetTokenizer, recipe: Recipe) -> None:
    """For this process: it need not be loaded again."""
    _TOKENIZERS[recipe.tokenizer, recipe.fingerprint, recipe.twin] = tokenizer


def part_path(out: Path, file: str) -> Path:
    return out / PARTS / f"{_flat(file)}.json"


def _flat(file: str) -> str:
    """`gen/shard-00001.jsonl` as a name of its own: other machines have a shard 1 as well."""
    return Path(file).with_suffix("").as_posix().replace("/", "+")


def existing(out: Path, entry: Entry, recipe: Recipe) -> dict[str, Any] | None:
    """The part, when it was made from this input by this recipe and its shards are whole."""
    path = part_path(out, entry.file)
    if not path.is_file():
        return None
    try:
        part = read_json(path, "part of a tokenized set", PART)
    except InputInvalid:  # torn by another hand: it is made anew
        return None
    same = part["input"] == entry.identity and part["recipe"] == recipe.as_dict()
    same = same and part["splits"].keys() == set(recipe.splits.names)
    whole = same and all(
        (out / name / made["file"]).is_file()
        and (out / name / made["file"]).stat().st_size == made["bytes"]
        for name, split in part["splits"].items()
        for made in split["shards"]
    )
    return part if whole else None


def make_part(path: Path, entry: Entry, out: Path, recipe: Recipe) -> dict[str, Any] | Refused:
    """The part, written; or what is wrong with the file, and then nothing of it is written."""
    maker = _Maker(path, tokenizer_of(recipe), recipe)
    name = f"{_flat(entry.file)}.arrow"
    kept: dict[str, tuple[list[int], list[int]]] = {n: ([], []) for n in recipe.splits.names}
    with contextlib.ExitStack() as stack:
        # One file of a million rows must not stand in memory whole: rows go out as they come.
        writers = {
            split: stack.enter_context(shards.ShardWriter(out / split / name)) for split in kept
        }
        for sample in maker.samples():
            split = recipe.splits.of(sample.id)
            writers[split].add(row_of(sample))
            kept[split][0].append(len(sample))
            kept[split][1].append(len(sample.completion_ids))
        if not maker.counts["rows"] and not maker.bad:
            maker.bad.append(f"{entry.file}: found no line in it")
        if maker.bad and not recipe.skip_bad:
            for writer in writers.values():
                writer.discard()
    if maker.bad and not recipe.skip_bad:
        return Refused(file=entry.file, count=len(maker.bad), first=tuple(maker.bad[:BAD_SHOWN]))
    counts = maker.counts
    if maker.bad:
        counts["skipped_bad"] = len(maker.bad)
    part = {
        "input": entry.identity,
        "recipe": recipe.as_dict(),
        "rows": counts.pop("rows", 0) + len(maker.bad),
        "counts": dict(sorted(counts.items())),
        "splits": {
            split: {"shards": writers[split].entries, "lengths": lengths, "loss_tokens": loss}
            for split, (lengths, loss) in kept.items()
        },
    }
    write_json(part_path(out, entry.file), part)
    return part


class _Maker:
    """Rows of one file as samples; what cannot be one is described in `bad`."""

    def __init__(self, path: Path, tokenizer: TargetTokenizer, recipe: Recipe) -> None:
        self.counts: Counter[str] = Counter()
        self.bad: list[str] = []
        self._path, self._tokenizer, self._recipe = path, tokenizer, recipe

    def samples(self) -> Iterator[Sample]:
        lines = jsonl_lines(self._path, "completions")
        while chunk := list(itertools.islice(lines, TOGETHER)):
            for number, record, made in self._chunk(chunk):
                if isinstance(made, InputInvalid):
                    self.bad.append(f"{self._path.name}:{number}: {made.message}")
                    continue
                self._check(record, made)
                self.counts["rows"] += 1
                fitted = fit(
                    made, max_length=self._recipe.max_length, overlong=self._recipe.overlong
                )
                if fitted is None:
                    self.counts["dropped_overlong"] += 1
                    continue
                self.counts.update(fitted.notes)
                yield fitted
        self._refuse_wrong_tokenizer()

    def _chunk(
        self, lines: list[tuple[int, bytes]]
    ) -> Iterator[tuple[int, dict[str, Any], Sample | InputInvalid]]:
        """Line number, record and sample, or what is wrong with the line, in order."""
        parsed = [_parsed(line) for _, line in lines]
        records = [found for found in parsed if isinstance(found, dict)]
        samples = iter(samples_of(records, self._tokenizer, self._recipe.template_kwargs))
        for (number, _), found in zip(lines, parsed, strict=True):
            if isinstance(found, dict):
                yield number, found, next(samples)
            else:
                yield number, {}, found

    def _check(self, record: dict[str, Any], sample: Sample) -> None:
        self._check_ids(sample)
        seen = self.counts["rows"]
        if seen == 0:
            self._check_twin(record, sample)
        if seen < CHECKED_ROWS:
            self.counts.update(_compare(record, sample, self._tokenizer, self._recipe))

    def _check_ids(self, sample: Sample) -> None:
        ids = (sample.completion_ids, sample.prompt_ids)
        size = self._tokenizer.vocab_size
        biggest = max(int(part.max(initial=0)) for part in ids)
        if biggest >= size or min(int(part.min(initial=0)) for part in ids) < 0:
            raise WrongTokenizer(
                f"{self._path.name}, row {sample.id!r}: token id {biggest} is beyond the "
                f"{size} of {self._tokenizer.path}",
                "Point --tokenizer at the folder of the model that the servers ran.",
            )

    def _check_twin(self, record: dict[str, Any], sample: Sample) -> None:
        """The first row of each file by Hugging Face's own code as well."""
        if self._tokenizer.twin is None or "completion_encoded" not in sample.notes:
            return
        text = record.get("completion") or ""
        if self._tokenizer.encode_completion(text).tolist() != self._tokenizer.encode_slowly(text):
            raise WrongTokenizer(
                f"{self._path.name}, row {sample.id!r}: the fast tokenizer gives other ids than "
                "Hugging Face's",
                "Run again with --no-twin, which is slower; and report this text.",
            )

    def _refuse_wrong_tokenizer(self) -> None:
        # Single rows may differ (a character cut in half); another vocabulary differs in all.
        if self.counts["text_differs"] * 2 > self.counts["text_checked"]:
            raise WrongTokenizer(
                f"{self._path.name}: {self.counts['text_differs']} of "
                f"{self.counts['text_checked']} rows decode to another text than was recorded; "
                f"{self._tokenizer.path} is not the servers' tokenizer",
                "Point --tokenizer at the folder of the model that the servers ran.",
            )


def _parsed(line: bytes) -> dict[str, Any] | InputInvalid:
    try:
        return record_of(line)
    except InputInvalid as error:
        return error


def record_of(line: bytes) -> dict[str, Any]:
    """A completion record, or what is wrong with it."""
    try:
        record = json.loads(line)
    except UnicodeDecodeError as error:
        raise InputInvalid(f"bytes that are not UTF-8 at column {error.start + 1}") from None
    except ValueError as error:
        raise InputInvalid(f"no JSON ({error})") from None
    if not isinstance(record, dict):
        raise InputInvalid(f"a {type(record).__name__}, not an object")
    if not isinstance(record.get("id"), str) or not record["id"]:
        raise InputInvalid("no id")
    if not record.get("input_ids") and not _are_messages(record.get("messages")):
        raise InputInvalid(f"row {record['id']!r} has no list of messages with roles")
    if record.get("completion") is None and not record.get("output_ids"):
        raise InputInvalid(f"row {record['id']!r} has neither completion nor output_ids")
    if not isinstance(record.get("completion") or "", str):
        raise InputInvalid(f"row {record['id']!r}: its completion is no text")
    return record


def _are_messages(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(entry, dict) and isinstance(entry.get("role"), str) for entry in value)
    )


def row_of(sample: Sample) -> shards.Row:
    import numpy as np

    before, after = len(sample.prompt_ids), len(sample.completion_ids)
    mask = np.zeros(before + after, dtype=np.uint8)
    mask[before:] = 1
    ids = np.empty(before + after, dtype=np.int32)
    ids[:before], ids[before:] = sample.prompt_ids, sample.completion_ids
    return shards.Row(id=sample.id, input_ids=ids, loss_mask=mask)


def _compare(
    record: dict[str, Any], sample: Sample, tokenizer: TargetTokenizer, recipe: Recipe
) -> Iterator[str]:
    """Recorded ids against recorded text, and against our own rendering of the prompt."""
    if record.get("output_ids") and record.get("completion") is not None:
        yield "text_checked"
        decoded = tokenizer.decode(record["output_ids"]).rstrip("\ufffd")
        if decoded != record["completion"].rstrip("\ufffd"):
            yield "text_differs"
    if record.get("input_ids") and record.get("messages"):
        yield "prompt_checked"
        rendered = tokenizer.encode_prompt(
            record["messages"], record.get("tools"), recipe.template_kwargs
        )
        if rendered.tolist() != sample.prompt_ids.tolist():
            yield "prompt_differs"
