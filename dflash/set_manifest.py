"""The manifest of a tokenized set from its parts, and the merging of sets made on several hosts."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.audit_report import histogram
from dflash.errors import DflashError, InputInvalid
from dflash.files import read_json, sha256_file
from dflash.parts import PART, PARTS, part_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

SHARE_FORMAT = "dflash-tokenized-share/1"
QUANTILES = (0, 5, 25, 50, 75, 90, 95, 100)
SKIPPED = ("dropped_overlong", "skipped_bad")
SHARE = {
    "share": [int], "inputs": [{"place": int, "file": str}],
    "about": {
        "tokenizer": dict, "template_kwargs": dict, "max_length": (int, None), "overlong": str,
        "split_bounds": dict, "settings": dict,
    },
}  # fmt: skip
"""What a merge takes of a share's manifest."""
COPY = "Copy it again, or make its share anew."


def whole_manifest(parts: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    """Of all parts in the order of their inputs; `about` is what does not follow from them."""
    manifest = _manifest(parts, about)
    dropped = manifest["counts"].get("dropped_overlong", 0)
    for name, split in manifest["splits"].items():
        if not split["loss_tokens"]:
            raise DflashError(
                f"the split {name} would be empty: {sum(p['rows'] for p in parts)} rows came in"
                + (f", {dropped} were longer than {about['max_length']}" if dropped else ""),
                "Give more completions, another --split, or a larger --max-length.",
            )
    return {"format": shards.FORMAT, **manifest}


def share_manifest(
    parts: Sequence[Mapping[str, Any]],
    about: Mapping[str, Any],
    *,
    share: tuple[int, int],
    inputs: Sequence[tuple[int, str]],
) -> dict[str, Any]:
    """Of one host's part of the input; no reader takes it for a set."""
    listed = [{"place": place, "file": file} for place, file in inputs]
    return {
        "format": SHARE_FORMAT, "share": list(share), "inputs": listed, "about": dict(about),
        **_manifest(parts, about),
    }  # fmt: skip


def _manifest(parts: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for part in parts:
        counts.update(part["counts"])
    names = list(about["split_bounds"])
    return {
        "tokenizer": about["tokenizer"],
        "template_kwargs": about["template_kwargs"],
        "max_length": about["max_length"],
        "overlong": about["overlong"],
        "split_bounds": about["split_bounds"],
        "source": {"settings": about["settings"], "rows": sum(part["rows"] for part in parts)},
        "counts": dict(sorted(counts.items())),
        "splits": {name: _split_entry(name, parts) for name in names},
    }


def _split_entry(name: str, parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    found = [part["splits"][name] for part in parts]
    lengths = [value for split in found for value in split["lengths"]]
    loss = [value for split in found for value in split["loss_tokens"]]
    return {
        "shards": [made for split in found for made in split["shards"]],
        "rows": len(lengths),
        "tokens": sum(lengths),
        "loss_tokens": sum(loss),
        "statistics": {"length": _statistics(lengths), "loss_tokens": _statistics(loss)},
    }


def _statistics(values: list[int]) -> dict[str, Any]:
    import numpy as np

    if not values:
        return {}
    found = np.percentile(np.array(values), QUANTILES, method="nearest")
    named = {f"p{q}": float(value) for q, value in zip(QUANTILES, found, strict=True)}
    mean = round(float(np.mean(values)), 2)
    return {**named, "mean": mean, "histogram": histogram(sorted(Counter(values).items()))}


def table(manifest: Mapping[str, Any]) -> str:
    """Rows, tokens and lengths by split, and what was left out."""
    columns = ("split", "rows", "tokens", "loss tokens", "mean", "median", "p90", "max")
    lines = [_line(columns)]
    for name, split in manifest["splits"].items():
        length = split["statistics"]["length"]
        shown = [f"{length[key]:,.0f}" for key in ("mean", "p50", "p90", "p100")] if length else []
        numbers = [f"{split[key]:,}" for key in ("rows", "tokens", "loss_tokens")]
        lines.append(_line([name, *numbers, *shown]))
    left_out = {name: manifest["counts"].get(name, 0) for name in SKIPPED}
    lines.append(
        f"left out: {left_out['dropped_overlong']:,} too long, {left_out['skipped_bad']:,} unusable"
        + (f"; cut: {manifest['counts']['cut']:,}" if manifest["counts"].get("cut") else "")
    )
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return (f"{cells[0]:<10}" + "".join(f"{cell:>14}" for cell in cells[1:])).rstrip()


def gather(folders: Sequence[Path], out: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The parts of all shares, brought into `out` and checked, and what they agree on."""
    found = [(folder, _share(folder)) for folder in folders]
    about = found[0][1]["about"]
    _check_shares(found)
    placed = {}
    for folder, manifest in found:
        for entry in manifest["inputs"]:
            part = _take(folder, out, entry["file"])
            if part["splits"].keys() != about["split_bounds"].keys():
                raise InputInvalid(f"{folder} has other splits for {entry['file']}", COPY)
            placed[entry["place"]] = part
    return [placed[place] for place in sorted(placed)], about


def _share(folder: Path) -> dict[str, Any]:
    return read_json(
        folder / shards.MANIFEST, "manifest of a share", SHARE, form=SHARE_FORMAT,
        hint="Merge what `dflash tokenize --shard I/N` wrote.",
    )  # fmt: skip


def _check_shares(found: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    first, manifest = found[0]
    given = [entry["share"] for _, entry in found]
    total = max(given[0], default=0)
    for folder, other in found[1:]:
        for key in {*manifest["about"], *other["about"]}:
            if manifest["about"].get(key) != other["about"].get(key):
                raise InputInvalid(
                    f"{folder} was made otherwise than {first}: {key} differs",
                    "Tokenize every share with the same options and tokenizer.",
                )
    wanted = [[number, total] for number in range(1, total + 1)]
    if sorted(given) != wanted:
        words = ", ".join("/".join(map(str, share)) for share in given)
        raise InputInvalid(
            f"shares {words} were given, 1/{total} to {total}/{total} are needed, each once",
            "Give every folder that --shard wrote.",
        )


def _take(folder: Path, out: Path, file: str) -> dict[str, Any]:
    """One part with its shards; linked where the file system can, copied where not."""
    source = part_path(folder, file)
    part = read_json(source, "part of a tokenized set", PART, hint=COPY)
    for split, made in part["splits"].items():
        for entry in made["shards"]:
            origin = folder / split / entry["file"]
            if not origin.is_file() or sha256_file(origin) != entry["sha256"]:
                raise InputInvalid(f"{origin} is not what its part says", COPY)
            _place(origin, out / split / entry["file"])
    _place(source, out / PARTS / source.name)
    return part


def _place(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.part")
    aside.unlink(missing_ok=True)
    try:
        os.link(source, aside)
    except OSError:
        shutil.copyfile(source, aside)
    aside.replace(target)
