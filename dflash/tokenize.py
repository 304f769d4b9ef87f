"""`dflash tokenize`: completions into a tokenized set, resumable file by file.

Each input file becomes at most one shard per split, and a part file that says what it was made
from. A second run keeps the parts that still fit and makes the others; the manifest comes last, so
that a set without one is not finished. With --shard, one host does its part of the files; --merge
puts the parts together, into the very bytes that one host would have made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.completions import template_kwargs_of
from dflash.errors import InputInvalid, UsageError
from dflash.files import lock_folder, remove_asides, write_json
from dflash.objects import add_store_arguments, store_options
from dflash.part_workers import results
from dflash.parts import PARTS, Recipe, Refused, existing, remember
from dflash.progress import Progress, write_out
from dflash.set_manifest import gather, share_manifest, table, whole_manifest
from dflash.sources import Source, open_source
from dflash.splits import Splits, parse_shares
from dflash.tokenizer import TargetTokenizer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from dflash.masks import Overlong
    from dflash.s3 import StoreOptions
    from dflash.sources import Entry

EXAMPLE = """examples:
  python -m dflash tokenize --completions completions --tokenizer models/target --out tokenized \\
    --max-length 4096 --split train=0.9,heldout=0.1 --workers 8
  python -m dflash tokenize --completions s3://bucket/completions --tokenizer models/target \\
    --shard 2/4 --out share-2                          # on the second of four hosts
  python -m dflash tokenize --merge share-1 share-2 share-3 share-4 --out tokenized"""
INBOX = ".inbox"
SURE = 8
"""A split that expects so many times its floor has it: no look at the ids is needed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--completions", metavar="DIR", help="of `dflash generate`, or of *.jsonl files; or s3://"
    )
    source.add_argument("--merge", nargs="+", type=Path, metavar="DIR", help="shares into one set")
    add = parser.add_argument
    add("--tokenizer", type=Path, metavar="DIR", help="the target model's folder")
    add("--out", required=True, type=Path, metavar="DIR", help="the tokenized set")
    add("--max-length", type=int, metavar="N", help="tokens of prompt and completion together")
    add(
        "--overlong",
        default="drop",
        choices=["drop", "truncate", "keep"],
        help="rows above --max-length (%(default)s)",
    )
    add("--bad-rows", default="refuse", choices=["refuse", "skip"],
        help="rows that cannot be used: end with an error, or leave them out, counted")  # fmt: skip
    add("--split", default="train=0.9,heldout=0.1", metavar="NAME=SHARE,..", help="(%(default)s)")
    add("--min-heldout", type=int, default=8, metavar="N", help="rows, if a quarter allows it")
    add(
        "--template-kwargs", type=_json_object, metavar="JSON", help="besides the record's thinking"
    )
    add(
        "--shard",
        type=_share,
        dest="share",
        metavar="I/N",
        help="do only the I-th of N parts of the files",
    )
    add("--workers", type=int, default=1, metavar="N", help="processes (%(default)s)")
    add("--no-twin", action="store_true", help="Hugging Face's own code, several times slower")
    add_store_arguments(parser.add_argument_group("completions at s3://"))


def run(args: argparse.Namespace) -> int:
    if args.max_length is not None and args.max_length < 2:
        raise UsageError("--max-length below 2 leaves no room for a prompt and an answer")
    progress = Progress(echo=sys.stderr)
    if args.merge:
        manifest = merge(args.merge, args.out, progress=progress)
    else:
        if args.tokenizer is None:
            raise UsageError("--tokenizer is missing", "Name the target model's folder.")
        manifest = tokenize(
            completions=args.completions,
            options=store_options(args),
            tokenizer=args.tokenizer,
            out=args.out,
            max_length=args.max_length,
            overlong=args.overlong,
            shares=parse_shares(args.split),
            min_heldout=args.min_heldout,
            template_kwargs=args.template_kwargs,
            skip_bad=args.bad_rows == "skip",
            share=args.share,
            workers=args.workers,
            twin=not args.no_twin,
            progress=progress,
        )
    sys.stdout.write(table(manifest))
    return 0


def _share(text: str) -> tuple[int, int]:
    try:
        number, total = map(int, text.split("/"))
    except ValueError:
        raise UsageError(f"--shard {text!r} is no I/N", "For example --shard 2/4.") from None
    if not 1 <= number <= total:
        raise UsageError(f"--shard {text}: the first number goes from 1 to the second")
    return number, total


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--template-kwargs is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--template-kwargs is no JSON object", 'As {"enable_thinking": false}.')
    return value


def tokenize(
    *,
    completions: Path | str,
    tokenizer: Path,
    out: Path,
    max_length: int | None = None,
    overlong: Overlong = "drop",
    shares: dict[str, float] | None = None,
    min_heldout: int = 8,
    template_kwargs: dict[str, Any] | None = None,
    skip_bad: bool = False,
    share: tuple[int, int] | None = None,
    workers: int = 1,
    twin: bool = True,
    options: StoreOptions | None = None,
    progress: Progress,
) -> dict[str, Any]:
    """Make `out` the tokenized form of `completions`, or a share of it; returns the manifest."""
    source = open_source(str(completions), options)
    if not source.entries:
        raise InputInvalid(
            f"{completions} has no sealed shard yet", "Let `dflash generate` finish first."
        )
    tokens = TargetTokenizer(tokenizer, fast=twin)
    places = range(len(source.entries)) if share is None else range(
        share[0] - 1, len(source.entries), share[1]
    )  # fmt: skip
    entries = [source.entries[place] for place in places]
    with lock_folder(out):
        # Hosts see only their own files, so for shares the bounds must follow from nothing else.
        floor = min_heldout if share is None else 0
        wanted = shares or {"train": 0.9, "heldout": 0.1}
        recipe = Recipe(
            tokenizer=str(tokenizer),
            fingerprint=tokens.fingerprint,
            template_kwargs=template_kwargs_of(source.settings, template_kwargs),
            max_length=max_length,
            overlong=overlong,
            splits=_splits(source, wanted, floor, out / INBOX),
            skip_bad=skip_bad,
            twin=twin,
        )
        remember(tokens, recipe)
        _say_speed(tokens, source, entries, progress)
        for folder in (out, out / PARTS, *(out / name for name in recipe.splits.names)):
            remove_asides(folder)
        parts = _parts(source, entries, out, recipe, workers, progress)
        about = {
            **recipe.as_dict(),
            "split_bounds": recipe.splits.as_dict(),
            "tokenizer": tokens.describe(),
            "settings": source.settings,
        }
        if share is None:
            manifest = whole_manifest(parts, about)
        else:
            inputs = [(place, source.entries[place].file) for place in places]
            manifest = share_manifest(parts, about, share=share, inputs=inputs)
        _finish(out, manifest)
    _tell(manifest, out, progress)
    return manifest


def merge(folders: list[Path], out: Path, *, progress: Progress) -> dict[str, Any]:
    """One set of the shares that hosts made."""
    with lock_folder(out):
        (out / shards.MANIFEST).unlink(missing_ok=True)
        parts, about = gather(folders, out)
        manifest = whole_manifest(parts, about)
        _finish(out, manifest)
    _tell(manifest, out, progress)
    return manifest


def _splits(source: Source, shares: dict[str, float], floor: int, inbox: Path) -> Splits:
    rows, smallest = source.rows, min(shares.values())
    if not floor or (rows is not None and rows * smallest >= SURE * floor):
        return Splits.over((), shares, floor=0)
    return Splits.over(_ids_of(source, inbox), shares, floor=floor)


def _ids_of(source: Source, inbox: Path) -> Iterator[str]:
    """The id is the first key of each line: reading it costs no parse of the token ids."""
    decoder = json.JSONDecoder()
    for path in source.arriving(source.entries, inbox):
        with path.open(encoding="utf-8", errors="replace") as handle:
            for line in handle:
                with contextlib.suppress(ValueError, TypeError, KeyError):  # told of later
                    if line.startswith('{"id":'):
                        yield str(decoder.raw_decode(line, 6)[0])
                    elif line.strip():
                        yield str(json.loads(line)["id"])


def _say_speed(
    tokens: TargetTokenizer, source: Source, entries: list[Entry], progress: Progress
) -> None:
    rows = source.rows if len(entries) == len(source.entries) else None
    how = "tiktoken" if tokens.twin is not None else (
        f"Hugging Face's own code, several times slower than tiktoken ({tokens.why_slow})"
    )  # fmt: skip
    progress.emit("phase", done=0, total=rows, unit="rows", message=f"tokenize with {how}")


def _parts(
    source: Source,
    entries: list[Entry],
    out: Path,
    recipe: Recipe,
    workers: int,
    progress: Progress,
) -> list[dict[str, Any]]:
    """One part per input file, in input order; those already there are kept."""
    found: list[dict[str, Any] | None] = [existing(out, entry, recipe) for entry in entries]
    todo = [number for number, part in enumerate(found) if part is None]
    if todo:
        (out / shards.MANIFEST).unlink(missing_ok=True)  # the set is not whole until the end
    done = sum(part["rows"] for part in found if part is not None)
    refused = []
    files = source.arriving([entries[n] for n in todo], out / INBOX)
    jobs = ((path, entries[n], out, recipe) for path, n in zip(files, todo, strict=True))
    try:
        for number, made in results(jobs, min(workers, len(todo)), keep=source.path is not None):
            if isinstance(made, Refused):
                refused.append(made)
                continue
            found[todo[number]] = made
            done += made["rows"]
            progress.emit("step", done=done, total=source.rows, unit="rows")
    finally:
        shutil.rmtree(out / INBOX, ignore_errors=True)
    _refuse(refused)
    return [part for part in found if part is not None]


def _refuse(refused: list[Refused]) -> None:
    if not refused:
        return
    refused.sort(key=lambda one: one.file)
    total = sum(one.count for one in refused)
    shown = [line for one in refused for line in one.first]
    raise InputInvalid(
        f"{_plural(total, 'row')} in {_plural(len(refused), 'file')} cannot be used:\n  "
        + "\n  ".join(shown[:10]),
        "Mend or remove them and run the same command again (whole files are kept as they are "
        "done), or leave such rows out with --bad-rows skip.",
    )


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def _finish(out: Path, manifest: dict[str, Any]) -> None:
    """Shards of an earlier, longer input or of splits no longer asked for go; then the manifest."""
    for folder in (path for path in out.iterdir() if path.is_dir() and path.name != PARTS):
        listed = manifest["splits"].get(folder.name, {"shards": []})["shards"]
        names = {entry["file"] for entry in listed}
        for path in folder.glob("*.arrow"):
            if path.name not in names:
                path.unlink()
        if not names and not any(folder.iterdir()):
            shutil.rmtree(folder)
    write_json(out / shards.MANIFEST, manifest)


def _tell(manifest: dict[str, Any], out: Path, progress: Progress) -> None:
    splits = manifest["splits"]
    totals = {name: split["rows"] for name, split in splits.items()}
    tokens = sum(split["tokens"] for split in splits.values())
    loss = sum(split["loss_tokens"] for split in splits.values())
    rows = manifest["source"]["rows"]
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
