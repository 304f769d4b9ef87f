"""`dflash show ID`: one row as the trainer sees it, the loss mask in colour.

Colour only on a terminal without NO_COLOR; elsewhere the generated text stands between ⟦ and ⟧.
Control characters of a model's text never reach the terminal.
"""

from __future__ import annotations

import itertools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from dflash import completions, shards
from dflash.errors import InputInvalid
from dflash.tokenizer import TargetTokenizer

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    import numpy as np

EXAMPLE = """examples:
  python -m dflash show row-17 --tokenized tokenized --tokenizer models/target
  python -m dflash show row-17 --completions completions --tokenizer models/target --tokens"""
DIM, LOSS, MARK, RESET = "\033[2m", "\033[32m", "\033[1;33m", "\033[0m"
OPEN, CLOSE = "⟦", "⟧"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("id", metavar="ID", help="of the row")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--tokenized", type=Path, metavar="DIR", help="of `dflash tokenize`")
    source.add_argument("--completions", type=Path, metavar="DIR", help="of `dflash generate`")
    add("--tokenizer", required=True, type=Path, metavar="DIR", help="the target's folder")
    add("--split", metavar="NAME", help="look only there (default: in every split)")
    add("--tokens", action="store_true", help="one token a line, with its id")


def run(args: argparse.Namespace) -> int:
    tokenizer = TargetTokenizer(args.tokenizer)
    if args.tokenized is not None:
        where, row = find_row(args.tokenized, args.id, args.split)
        _refuse_other_tokenizer(args.tokenized, tokenizer)
    else:
        where, row = row_of_completion(args.completions, args.id, tokenizer)
    loss = int(row.loss_mask.sum())
    sys.stdout.write(f"{row.id}  {where}  {len(row.input_ids):,} tokens, {loss:,} with loss\n\n")
    colour = wants_colour(sys.stdout)
    text = token_lines(row, tokenizer) if args.tokens else painted(row, tokenizer, colour=colour)
    sys.stdout.write(text + "\n")
    return 0


def wants_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def find_row(folder: Path, name: str, split: str | None) -> tuple[str, shards.Row]:
    names = [split] if split else sorted(shards.read_manifest(folder)["splits"])
    for one in names:
        rows = shards.TokenizedSet(folder, one)
        place = rows.find(name)
        if place is not None:
            return one, rows.row(place)
    raise _not_there(name, f"{folder}, splits {', '.join(names)}")


def row_of_completion(
    folder: Path, name: str, tokenizer: TargetTokenizer
) -> tuple[str, shards.Row]:
    """What `dflash tokenize` would make of it."""
    from dflash.masks import sample_of
    from dflash.parts import row_of

    kwargs = completions.template_kwargs_of(completions.read_manifest(folder)["settings"], None)
    for record in completions.read_records(completions.shard_paths(folder, inflight=True)):
        if record["id"] == name:
            sample = sample_of(record, tokenizer, kwargs)
            return ", ".join(sample.notes), row_of(sample)
    raise _not_there(name, str(folder))


def _not_there(name: str, where: str) -> InputInvalid:
    return InputInvalid(
        f"there is no row {name!r} in {where}", "`dflash audit` lists ids in its report."
    )


def _refuse_other_tokenizer(folder: Path, tokenizer: TargetTokenizer) -> None:
    about = shards.read_manifest(folder, {"tokenizer": {"fingerprint": str}})
    if about["tokenizer"]["fingerprint"] != tokenizer.fingerprint:
        raise InputInvalid(
            f"{folder} was tokenized by another tokenizer than {tokenizer.path}",
            "Name the folder that `dflash tokenize --tokenizer` was given.",
        )


def painted(row: shards.Row, tokenizer: TargetTokenizer, *, colour: bool) -> str:
    """The decoded text; spans are decoded whole, for a character may take several tokens."""
    parts = []
    for loss, ids in spans(row):
        text = harmless(tokenizer.decode(ids))
        if not colour:
            parts.append(f"{OPEN}{text}{CLOSE}" if loss else text)
            continue
        base = LOSS if loss else DIM
        for place, piece in enumerate(tokenizer.cut_at_added(text)):
            if piece:
                parts.append(f"{MARK if place % 2 else base}{piece}{RESET}")
    return "".join(parts)


def spans(row: shards.Row) -> Iterator[tuple[bool, Sequence[int]]]:
    """Runs of equal mask."""
    import numpy as np

    mask: np.ndarray = row.loss_mask
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            yield bool(mask[start]), row.input_ids[start:end].tolist()


def token_lines(row: shards.Row, tokenizer: TargetTokenizer) -> str:
    lines = [
        f"{place:>6} {'loss' if loss else '    '} {number:>7}  {_shown(tokenizer, number)}"
        for place, (number, loss) in enumerate(
            zip(row.input_ids.tolist(), row.loss_mask.tolist(), strict=True)
        )
    ]
    return "\n".join(lines)


def _shown(tokenizer: TargetTokenizer, number: int) -> str:
    known: Any = 0 <= number < tokenizer.vocab_size
    return repr(tokenizer.decode([number])) if known else "beyond the vocabulary"


def harmless(text: str) -> str:
    """A model's text must not steer the terminal that shows it."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
