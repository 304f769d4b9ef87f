"""`dflash audit`: looks at every row of completions or of a tokenized set, then judges the gates.

Writes report.json, report.txt, histogram.png and samples.json into the report folder, always, and
exits with 4 when a gate does not hold. Runs over a folder that `generate` still writes to as well.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.audit_report import render
from dflash.errors import GateFailed, UsageError
from dflash.files import write_json, write_text
from dflash.gates import gates_help, judge, parse_gates
from dflash.looker import Eye, Tally
from dflash.picture import draw
from dflash.progress import Progress, write_out
from dflash.sights import of_completions, of_tokenized
from dflash.sources import open_source

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from dflash.tokenizer import TargetTokenizer

TOKENIZED = {
    "splits": {"*": {"shards": [shards.SHARD], "rows": int}},
    "tokenizer": shards.TOKENIZER,
    "counts?": {"prompt_checked?": int, "prompt_differs?": int},
}
"""What is taken of a set's manifest."""
EXAMPLE = f"""example:
  python -m dflash audit --completions completions --tokenizer models/target --report audit \\
    --gate min_rows=1000 --gate max_truncated=0.05 --gate thinking=required

{gates_help()}"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--completions", type=Path, metavar="DIR", help="of `dflash generate`")
    add("--tokenized", type=Path, metavar="DIR", help="of `dflash tokenize`")
    add("--tokenizer", type=Path, metavar="DIR", help="the target's folder: text and special ids")
    add("--mask-token-id", type=int, metavar="ID", help="the drafter's, which no data may contain")
    add("--gate", action="append", default=[], metavar="NAME=VALUE", help="may be given many times")
    add("--report", required=True, type=Path, metavar="DIR", help="where the files go")


def run(args: argparse.Namespace) -> int:
    if (args.completions is None) == (args.tokenized is None):
        raise UsageError("give one of --completions and --tokenized")
    report = audit(
        completions=args.completions,
        tokenized=args.tokenized,
        tokenizer=args.tokenizer,
        mask_token_id=args.mask_token_id,
        gates=args.gate,
        out=args.report,
        progress=Progress(echo=sys.stderr),
    )
    sys.stdout.write(render(report))
    failed = [gate["sentence"] for gate in report["gates"] if not gate["passed"]]
    if failed:
        raise GateFailed(
            f"{len(failed)} of {len(report['gates'])} gates failed\n  " + "\n  ".join(failed),
            f"See {args.report / 'report.txt'} and samples.json beside it.",
        )
    return 0


def audit(
    *,
    completions: Path | None = None,
    tokenized: Path | None = None,
    tokenizer: Path | None = None,
    mask_token_id: int | None = None,
    gates: Sequence[str] = (),
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Look, judge, write; returns the report."""
    limits = parse_gates(gates)  # a wrong gate must not show after an hour of looking
    tokens = _load(tokenizer)
    mismatch: float | None = None
    if completions is not None:
        total = open_source(str(completions)).rows
        sights, vocabulary = of_completions(completions, tokens), None
    else:
        assert tokenized is not None
        about = shards.read_manifest(tokenized, TOKENIZED)
        total = sum(split["rows"] for split in about["splits"].values())
        end_ids = {about["tokenizer"].get(name) for name in ("eos_token_id", "pad_token_id")}
        vocabulary = about["tokenizer"]["vocab_size"]
        sights = of_tokenized(tokenized, tokens, end_ids)
        mismatch = _recorded_mismatch(about)
    eye = Eye(tokens, mask_token_id=mask_token_id, vocabulary=vocabulary)
    tally = Tally(eye)
    progress.emit("phase", done=0, total=total, unit="rows", message="audit")
    for number, sight in enumerate(sights, start=1):
        tally.add(eye.look(sight))
        if number % 2000 == 0:
            progress.emit("step", done=number, total=total, unit="rows")
    report = tally.report(source=str(completions or tokenized))
    if mismatch is not None:
        report["shares"]["template_mismatch"] = mismatch
    report["gates"] = judge(limits, report)
    report["passed"] = all(gate["passed"] for gate in report["gates"])
    write_json(out / "report.json", report)
    write_text(out / "report.txt", render(report))
    panels = [("loss tokens a row", report["loss_tokens"]), ("tokens a row", report["length"])]
    counted = [(name, numbers) for name, numbers in panels if numbers]
    draw(out / "histogram.png", f"{report['source']}: {report['rows']:,} rows", counted)
    write_json(out / "samples.json", {"samples": tally.samples()})
    _tell(report, out, progress)
    return report


def _load(path: Path | None) -> TargetTokenizer | None:
    if path is None:
        return None
    from dflash.tokenizer import TargetTokenizer

    return TargetTokenizer(path)


def _recorded_mismatch(manifest: dict[str, Any]) -> float | None:
    """Rows whose prompt the template renders otherwise than the server did, as tokenizing saw."""
    counts = manifest.get("counts") or {}
    checked = counts.get("prompt_checked")
    return (counts.get("prompt_differs") or 0) / checked if checked else None


def _tell(report: dict[str, Any], out: Path, progress: Progress) -> None:
    failed = [gate["gate"] for gate in report["gates"] if not gate["passed"]]
    progress.emit(
        "done",
        done=report["rows"],
        total=report["rows"],
        unit="rows",
        message=f"{len(report['gates']) - len(failed)} of {len(report['gates'])} gates hold",
        metrics={name: share for name, share in report["shares"].items() if share},
    )
    write_out(
        {
            "path": str(out.absolute()),
            "rows": report["rows"],
            "passed": report["passed"],
            "failed_gates": failed,
            "loss_tokens": report["loss_tokens"],
            "shares": report["shares"],
        }
    )
