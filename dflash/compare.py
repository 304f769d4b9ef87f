"""`dflash compare`: evaluations of several checkpoints side by side, with intervals.

Prompts are the unit that is random, and the reports were made on the same ones: differences are
taken prompt by prompt, which is much sharper than comparing two means. Reports that differ in
target, prompts or sampling are not compared.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import InputInvalid, UsageError
from dflash.evaluation_report import COMPARED
from dflash.files import read_json, write_json
from dflash.progress import write_out
from dflash.statistics import paired_bootstrap

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

FORMAT = "dflash-compare/1"
OF_EVAL = "dflash-eval/1"
SAME = ("target", "prompts", "sampling")
EXAMPLE = """example:
  python -m dflash compare eval-1000.json eval-2000.json eval-3000.json"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("reports", nargs="+", type=Path, metavar="REPORT", help="of `dflash eval`; the first is "
        "what the others are held against")  # fmt: skip
    add("--out", type=Path, metavar="FILE", help="the comparison as JSON")
    add("--seed", type=int, default=0, help="of the bootstrap (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    if len(args.reports) < 2:
        raise UsageError("one report has nothing to be compared with", "Give two or more.")
    found = compare(args.reports, seed=args.seed)
    sys.stdout.write(table(found))
    if args.out is not None:
        write_json(args.out, found)
    write_out({"rows": found["rows"]})
    return 0


def compare(paths: Sequence[Path], *, seed: int = 0) -> dict[str, Any]:
    """Every report against the first."""
    reports = [(path, _report(path)) for path in paths]
    _check_same(reports)
    first = _lengths(reports[0][1])
    rows = []
    for path, report in reports:
        lengths = _lengths(report)
        pairs = [lengths[name] - first[name] for name in sorted(lengths.keys() & first.keys())]
        trained = report["methods"]["trained"]
        rows.append(
            {
                "report": str(path),
                "drafter": report["request"]["drafter"]["path"],
                **trained["acceptance_length"],
                "slots": [slot["rate"] for slot in trained["slots"]],
                "speedup": trained["speed"]["speedup"],
                "lossless": report["lossless"]["verdict"],
                "minus_first": None if path == paths[0] else _interval(pairs, seed),
            }
        )
    return {"format": FORMAT, "prompts": len(first), "rows": rows}


def _report(path: Path) -> dict[str, Any]:
    return read_json(
        path, "report of an evaluation", COMPARED, form=OF_EVAL,
        hint="Name what `dflash eval --out` wrote.",
    )  # fmt: skip


def _check_same(reports: Sequence[tuple[Path, Mapping[str, Any]]]) -> None:
    path, first = reports[0]
    for other_path, other in reports[1:]:
        for key in SAME:
            one, two = (_bare(report["request"][key]) for report in (first, other))
            if one != two:
                names = [name for name in {*one, *two} if one.get(name) != two.get(name)]
                raise InputInvalid(
                    f"{other_path} was measured otherwise than {path}: {key} differs in "
                    f"{', '.join(sorted(names))}",
                    "Evaluate both on the same target and prompts, with the same options.",
                )


def _bare(value: Mapping[str, Any]) -> dict[str, Any]:
    """Without paths: folders move, digests do not."""
    return {key: part for key, part in value.items() if key != "path"}


def _lengths(report: Mapping[str, Any]) -> dict[str, float]:
    found = {
        p["id"]: p["methods"]["trained"].get("acceptance_length") for p in report["per_prompt"]
    }
    return {name: value for name, value in found.items() if value is not None}


def _interval(pairs: Sequence[float], seed: int) -> dict[str, Any] | None:
    return paired_bootstrap(pairs, seed=seed).to_json() if pairs else None


def table(found: Mapping[str, Any]) -> str:
    lines = [f"{found['prompts']} prompts; tokens a round, difference from the first, 95% interval"]
    width = max(len(row["report"]) for row in found["rows"])
    for row in found["rows"]:
        macro = "     -" if row["macro"] is None else f"{row['macro']:6.3f}"
        line = f"{row['report']:<{width}}  {macro}"
        if (change := row["minus_first"]) is not None:
            sure = "" if change["low"] <= 0 <= change["high"] else "  *"
            line += (
                f"  {change['mean']:+.3f}  ({change['low']:+.3f} to {change['high']:+.3f}){sure}"
            )
        lines.append(line)
    lines.append("* the interval leaves out zero")
    return "\n".join(lines) + "\n"
