"""`dflash tokenize`: a folder of completions into a tokenized set, resumable shard by shard.

Each input shard becomes at most one output shard per split, and a part file that says what it was
made from. A second run keeps the parts that still fit and makes the others; the manifest comes
last, so that a set without one is not finished. Same input, same bytes: no clock, no random order.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.completions import read_manifest, read_records, shard_paths
from dflash.errors import DflashError, InputInvalid, UsageError
from dflash.files import lock_folder, read_json, remove_asides, write_json
from dflash.masks import Overlong, Sample, fit, sample_of
from dflash.progress import Progress, write_out
from dflash.splits import Splits, parse_shares
from dflash.tokenizer import TargetTokenizer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

EXAMPLE = """example:
  dflash tokenize --completions completions --tokenizer models/target --out tokenized \\
    --max-length 4096 --split train=0.9,heldout=0.1"""
CHECKED_ROWS = 16  # per shard, ids against text: a wrong tokenizer shows at once
QUANTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """All that decides the bytes of a part; a part made by another recipe is made again."""

    tokenizer: str
    fingerprint: str
    template_kwargs: dict[str, Any]
    max_length: int | None
    overlong: Overlong
    splits: Splits

    def as_dict(self) -> dict[str, Any]:
        return {
            "fingerprint": self.fingerprint,
            "template_kwargs": self.template_kwargs,
            "max_length": self.max_length,
            "overlong": self.overlong,
            "splits": self.splits.as_dict(),
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--completions", required=True, type=Path, metavar="DIR", help="of `dflash generate`")
    add("--tokenizer", required=True, type=Path, metavar="DIR", help="the target model's folder")
    add("--out", required=True, type=Path, metavar="DIR", help="the tokenized set")
    add("--max-length", type=int, metavar="N", help="tokens of prompt and completion together")
    add(
        "--overlong",
        default="drop",
        choices=["drop", "truncate", "keep"],
        help="rows above --max-length (%(default)s)",
    )
    add("--split", default="train=0.9,heldout=0.1", metavar="NAME=SHARE,..", help="(%(default)s)")
    add("--min-heldout", type=int, default=8, metavar="N", help="rows, if a quarter allows it")
    add("--template-kwargs", type=json.loads, metavar="JSON", help="besides the record's thinking")
    add("--workers", type=int, default=1, metavar="N", help="processes (%(default)s)")


def run(args: argparse.Namespace) -> int:
    if args.max_length is not None and args.max_length < 2:
        raise UsageError("--max-length below 2 leaves no room for a prompt and an answer")
    tokenize(
        completions=args.completions,
        tokenizer=args.tokenizer,
        out=args.out,
        max_length=args.max_length,
        overlong=args.overlong,
        shares=parse_shares(args.split),
        min_heldout=args.min_heldout,
        template_kwargs=args.template_kwargs,
        workers=args.workers,
        progress=Progress(echo=sys.stderr),
    )
    return 0


def tokenize(
    *,
    completions: Path,
    tokenizer: Path,
    out: Path,
    max_length: int | None = None,
    overlong: Overlong = "drop",
    shares: dict[str, float] | None = None,
    min_heldout: int = 8,
    template_kwargs: dict[str, Any] | None = None,
    workers: int = 1,
    progress: Progress,
) -> dict[str, Any]:
    """Make `out` the tokenized form of `completions`; returns the manifest."""
    source = read_manifest(completions)
    paths = shard_paths(completions)
    if not paths:
        raise InputInvalid(
            f"{completions} has no sealed shard yet", "Let `dflash generate` finish first."
        )
    tokens = TargetTokenizer(tokenizer)
    splits = Splits.over(
        _ids_of(paths), shares or {"train": 0.9, "heldout": 0.1}, floor=min_heldout
    )
    recipe = Recipe(
        tokenizer=str(tokenizer),
        fingerprint=tokens.fingerprint,
        template_kwargs=_template_kwargs(source, template_kwargs),
        max_length=max_length,
        overlong=overlong,
        splits=splits,
    )
    _TOKENIZERS[recipe.tokenizer, recipe.fingerprint] = tokens
    progress.emit("phase", done=0, total=source["rows"], unit="rows", message="tokenize")
    with lock_folder(out):
        for folder in (out, out / "parts", *(out / name for name in splits.names)):
            remove_asides(folder)
        parts = _make_parts(source["shards"], completions, out, recipe, workers, progress)
        manifest = _manifest(parts, recipe, tokens, source, out)
        _remove_strangers(out, manifest)
        write_json(out / shards.MANIFEST, manifest)
    _tell(manifest, out, source["rows"], progress)
    return manifest


def _template_kwargs(source: dict[str, Any], given: dict[str, Any] | None) -> dict[str, Any]:
    """As the servers were asked: thinking on or off must render alike."""
    thinking = source["settings"].get("thinking", "default")
    asked = {} if thinking == "default" else {"enable_thinking": thinking == "on"}
    return {**asked, **(given or {})}


def _ids_of(paths: list[Path]) -> Iterator[str]:
    """The id is the first key of each line: reading it costs no parse of the token ids."""
    decoder = json.JSONDecoder()
    for path in paths:
        with path.open(encoding="utf-8") as handle:
            for line in handle:
                if line.startswith('{"id":'):
                    yield decoder.raw_decode(line, 6)[0]
                elif line.strip():
                    yield json.loads(line)["id"]


def _make_parts(
    entries: list[dict[str, Any]],
    completions: Path,
    out: Path,
    recipe: Recipe,
    workers: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """One part per input shard, in input order; those already there are kept."""
    found = [_existing(out, entry, recipe) for entry in entries]
    todo = [number for number, part in enumerate(found) if part is None]
    if todo:
        (out / shards.MANIFEST).unlink(missing_ok=True)  # the set is not whole until the end
    total = sum(entry["rows"] for entry in entries)
    done = sum(part["rows"] for part in found if part is not None)
    jobs = [(completions / entries[n]["file"], entries[n], out, recipe) for n in todo]
    for number, part in _run(jobs, workers):
        found[todo[number]] = part
        done += part["rows"]
        progress.emit("step", done=done, total=total, unit="rows")
    return [part for part in found if part is not None]


def _run(jobs: list[tuple[Any, ...]], workers: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if workers <= 1 or len(jobs) < 2:
        for number, job in enumerate(jobs):
            yield number, make_part(*job)
        return
    # spawn: a fork of a process in which torch or Arrow has started threads can hang
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=spawn) as pool:
        futures = {pool.submit(make_part, *job): number for number, job in enumerate(jobs)}
        for future in as_completed(futures):
            yield futures[future], future.result()


def _part_path(out: Path, entry: dict[str, Any]) -> Path:
    return out / "parts" / Path(entry["file"]).with_suffix(".json").name


def _existing(out: Path, entry: dict[str, Any], recipe: Recipe) -> dict[str, Any] | None:
    path = _part_path(out, entry)
    if not path.is_file():
        return None
    part = read_json(path, "part of a tokenized set")
    same = part["input"] == entry["sha256"] and part["recipe"] == recipe.as_dict()
    whole = same and all(
        (out / name / made["file"]).is_file()
        and (out / name / made["file"]).stat().st_size == made["bytes"]
        for name, split in part["splits"].items()
        for made in split["shards"]
    )
    return part if whole else None


_TOKENIZERS: dict[tuple[str, str], TargetTokenizer] = {}


def _tokenizer(recipe: Recipe) -> TargetTokenizer:
    """Loaded once per process: it takes a second, a shard takes less."""
    key = (recipe.tokenizer, recipe.fingerprint)
    if key not in _TOKENIZERS:
        _TOKENIZERS[key] = TargetTokenizer(recipe.tokenizer)
    return _TOKENIZERS[key]


def make_part(path: Path, entry: dict[str, Any], out: Path, recipe: Recipe) -> dict[str, Any]:
    """One input shard into its output shards and part file."""
    tokenizer = _tokenizer(recipe)
    kept: dict[str, list[Sample]] = {name: [] for name in recipe.splits.names}
    counts: Counter[str] = Counter()
    for number, record in enumerate(read_records([path])):
        sample = sample_of(record, tokenizer, recipe.template_kwargs)
        _check_ids(sample, tokenizer, path)
        if number < CHECKED_ROWS:
            counts.update(_compare(record, sample, tokenizer, recipe.template_kwargs))
        fitted = fit(sample, max_length=recipe.max_length, overlong=recipe.overlong)
        counts["rows"] += 1
        if fitted is None:
            counts["dropped_overlong"] += 1
            continue
        counts.update(fitted.notes)
        kept[recipe.splits.of(record["id"])].append(fitted)
    _refuse_wrong_tokenizer(counts, tokenizer, path)
    name = Path(entry["file"]).with_suffix(".arrow").name
    part = {
        "input": entry["sha256"],
        "recipe": recipe.as_dict(),
        "rows": counts.pop("rows", 0),
        "counts": dict(sorted(counts.items())),
        "splits": {split: _write(out / split / name, rows) for split, rows in kept.items()},
    }
    write_json(_part_path(out, entry), part)
    return part


def _write(path: Path, samples: list[Sample]) -> dict[str, Any]:
    import numpy as np

    lengths = [len(sample) for sample in samples]
    loss = [len(sample.completion_ids) for sample in samples]
    made = []
    if samples:
        rows = [
            shards.Row(
                id=sample.id,
                input_ids=np.array(sample.prompt_ids + sample.completion_ids, dtype=np.int32),
                loss_mask=np.repeat(
                    np.array([0, 1], dtype=np.uint8),
                    [len(sample.prompt_ids), len(sample.completion_ids)],
                ),
            )
            for sample in samples
        ]
        made.append(shards.write_shard(path, rows))
    else:
        path.unlink(missing_ok=True)
    return {"shards": made, "lengths": lengths, "loss_tokens": loss}


def _check_ids(sample: Sample, tokenizer: TargetTokenizer, path: Path) -> None:
    biggest = max(max(sample.prompt_ids, default=0), max(sample.completion_ids))
    if biggest >= tokenizer.vocab_size or min(sample.completion_ids) < 0:
        raise InputInvalid(
            f"{path.name}, row {sample.id!r}: token id {biggest} is beyond the "
            f"{tokenizer.vocab_size} of {tokenizer.path}",
            "Point --tokenizer at the folder of the model that the servers ran.",
        )


def _compare(
    record: dict[str, Any],
    sample: Sample,
    tokenizer: TargetTokenizer,
    template_kwargs: dict[str, Any],
) -> Iterator[str]:
    """Recorded ids against recorded text, and against our own rendering of the prompt."""
    if record.get("output_ids"):
        yield "text_checked"
        decoded = tokenizer.decode(record["output_ids"]).rstrip("\ufffd")
        if decoded != (record.get("completion") or "").rstrip("\ufffd"):
            yield "text_differs"
    if record.get("input_ids"):
        yield "prompt_checked"
        rendered = tokenizer.encode_prompt(record["messages"], record.get("tools"), template_kwargs)
        if rendered != sample.prompt_ids:
            yield "prompt_differs"


def _refuse_wrong_tokenizer(counts: Counter[str], tokenizer: TargetTokenizer, path: Path) -> None:
    # Single rows may differ (a character cut in half); another vocabulary differs in all.
    if counts["text_differs"] * 2 > counts["text_checked"]:
        raise InputInvalid(
            f"{path.name}: {counts['text_differs']} of {counts['text_checked']} rows decode to "
            f"another text than was recorded; {tokenizer.path} is not the servers' tokenizer",
            "Point --tokenizer at the folder of the model that the servers ran.",
        )


def _manifest(
    parts: list[dict[str, Any]],
    recipe: Recipe,
    tokenizer: TargetTokenizer,
    source: dict[str, Any],
    out: Path,
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    splits = {name: _split_entry(name, parts) for name in recipe.splits.names}
    for name, split in splits.items():
        if not split["loss_tokens"]:
            raise DflashError(
                f"the split {name} of {out} would be empty: {sum(p['rows'] for p in parts)} rows "
                f"came in, {counts['dropped_overlong']} were longer than {recipe.max_length}",
                "Give more completions, another --split, or a larger --max-length.",
            )
    description = recipe.as_dict()
    return {
        "format": shards.FORMAT,
        "tokenizer": tokenizer.describe(),
        "template_kwargs": recipe.template_kwargs,
        "max_length": recipe.max_length,
        "overlong": recipe.overlong,
        "split_bounds": description["splits"],
        "source": {"settings": source["settings"], "rows": sum(part["rows"] for part in parts)},
        "counts": dict(sorted(counts.items())),
        "splits": splits,
    }


def _split_entry(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    lengths = [value for part in parts for value in part["splits"][name]["lengths"]]
    loss = [value for part in parts for value in part["splits"][name]["loss_tokens"]]
    return {
        "shards": [made for part in parts for made in part["splits"][name]["shards"]],
        "rows": len(lengths),
        "tokens": sum(lengths),
        "loss_tokens": sum(loss),
        "statistics": {"length": _quantiles(lengths), "loss_tokens": _quantiles(loss)},
    }


def _quantiles(values: list[int]) -> dict[str, float]:
    import numpy as np

    if not values:
        return {}
    found = np.percentile(np.array(values), QUANTILES, method="nearest")
    named = {f"p{q}": float(value) for q, value in zip(QUANTILES, found, strict=True)}
    return {**named, "mean": round(float(np.mean(values)), 2)}


def _remove_strangers(out: Path, manifest: dict[str, Any]) -> None:
    """Shards of an earlier, longer input or of splits no longer asked for."""
    for folder in (path for path in out.iterdir() if path.is_dir() and path.name != "parts"):
        listed = manifest["splits"].get(folder.name, {"shards": []})["shards"]
        names = {entry["file"] for entry in listed}
        for path in folder.glob("shard-*.arrow"):
            if path.name not in names:
                path.unlink()
        if not names and not any(folder.iterdir()):
            shutil.rmtree(folder)


def _tell(manifest: dict[str, Any], out: Path, rows: int, progress: Progress) -> None:
    totals = {name: split["rows"] for name, split in manifest["splits"].items()}
    tokens = sum(split["tokens"] for split in manifest["splits"].values())
    loss = sum(split["loss_tokens"] for split in manifest["splits"].values())
    progress.emit(
        "done",
        done=rows,
        total=rows,
        unit="rows",
        message=f"wrote {out}",
        metrics={**totals, "tokens": tokens, "loss_tokens": loss, **manifest["counts"]},
    )
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    write_out(
        {
            "path": str(out.absolute()),
            "rows": totals,
            "tokens": tokens,
            "loss_tokens": loss,
            "digest": digest,
            "dropped_overlong": manifest["counts"].get("dropped_overlong", 0),
        }
    )
