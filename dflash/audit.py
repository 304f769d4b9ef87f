"""`dflash audit`: looks at every row of completions or of a tokenized set, then judges the gates.

Writes report.json, report.txt, histogram.png and samples.json into the report folder, always, and
exits with 4 when a gate does not hold. Runs over a folder that `generate` still writes to as well.
"""

from __future__ import annotations

import sys
from array import array
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import shards
from dflash.audit_report import distribution, render, sample_entry
from dflash.errors import GateFailed, InputInvalid, UsageError
from dflash.files import read_json, write_json, write_text
from dflash.gates import judge, parse_gates
from dflash.measures import (
    Sight,
    Thinking,
    answer_digest,
    echoes_prompt,
    is_degenerate,
    is_empty,
    prompt_digest,
    thinking_of,
    units_of,
)
from dflash.picture import draw
from dflash.progress import Progress, write_out
from dflash.sights import of_completions, of_tokenized
from dflash.sources import open_source
from dflash.tool_calls import calls_in, calls_of_messages, loops

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from dflash.tokenizer import TargetTokenizer

EXAMPLE = """example:
  dflash audit --completions completions --tokenizer models/target --report audit \\
    --gate min_rows=1000 --gate max_truncated=0.05 --gate thinking=required

gates: any of min_rows, min_heldout_rows, min_mean_loss_tokens, max_mean_loss_tokens, max_length,
  and as shares of rows max_mode_share, max_empty, max_identical, max_duplicate_prompts,
  max_truncated, max_unclosed, max_orphan, max_repetition, max_prompt_echo, max_split_leakage,
  max_beyond_vocabulary, max_special_inside, max_mask_token, max_bad_tool_call, max_tool_loop,
  max_template_mismatch; max_mask_clash; thinking=required|off|any|SHARE"""
EXAMPLES_KEPT = 5
SAMPLES_PLAIN = 12
SAMPLES_FLAGGED = 3
FLAGS = (
    "empty",
    "identical",
    "duplicate_prompt",
    "truncated",
    "unclosed",
    "orphan",
    "repetition",
    "prompt_echo",
    "split_leakage",
    "beyond_vocabulary",
    "special_inside",
    "mask_token",
    "bad_tool_call",
    "tool_loop",
    "template_mismatch",
)


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
        about = read_json(tokenized / shards.MANIFEST, "tokenized set's manifest")
        total = sum(split["rows"] for split in about["splits"].values())
        end_ids = {about["tokenizer"][name] for name in ("eos_token_id", "pad_token_id")}
        vocabulary = about["tokenizer"]["vocab_size"]
        sights = of_tokenized(tokenized, tokens, end_ids)
        mismatch = _recorded_mismatch(about)
    looker = Looker(tokens, mask_token_id=mask_token_id, vocabulary=vocabulary)
    progress.emit("phase", done=0, total=total, unit="rows", message="audit")
    for number, sight in enumerate(sights, start=1):
        looker.look(sight)
        if number % 2000 == 0:
            progress.emit("step", done=number, total=total, unit="rows")
    report = looker.report(source=str(completions or tokenized))
    if mismatch is not None:
        report["shares"]["template_mismatch"] = mismatch
    report["gates"] = judge(limits, report)
    report["passed"] = all(gate["passed"] for gate in report["gates"])
    write_json(out / "report.json", report)
    write_text(out / "report.txt", render(report))
    panels = [("loss tokens a row", report["loss_tokens"]), ("tokens a row", report["length"])]
    draw(out / "histogram.png", f"{report['source']}: {report['rows']:,} rows", panels)
    write_json(out / "samples.json", {"samples": looker.samples()})
    _tell(report, out, progress)
    return report


def _load(path: Path | None) -> TargetTokenizer | None:
    if path is None:
        return None
    from dflash.tokenizer import TargetTokenizer

    return TargetTokenizer(path)


def _recorded_mismatch(manifest: dict[str, Any]) -> float | None:
    """Rows whose prompt the template renders otherwise than the server did, as tokenizing saw."""
    counts = manifest.get("counts", {})
    checked = counts.get("prompt_checked", 0)
    return counts.get("prompt_differs", 0) / checked if checked else None


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


class Looker:
    """Sees every row once and keeps numbers, digests and a few examples."""

    def __init__(
        self,
        tokenizer: TargetTokenizer | None,
        *,
        mask_token_id: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._mask = mask_token_id
        self._vocabulary = tokenizer.vocab_size if tokenizer else vocabulary
        self._loss, self._lengths = array("q"), array("q")
        self._splits: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._finish: Counter[str] = Counter()
        self._thinking: Counter[str] = Counter()
        self._finished = 0
        self._closed_finished = 0
        self._bare_finished = 0
        self._special: Counter[int] = Counter()
        self._answers: set[bytes] = set()
        self._prompts: dict[bytes, str] = {}
        self._examples: dict[str, list[str]] = {}
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._with_ids = 0
        self._rendered = 0
        self._calls = 0
        self._call_problems: Counter[str] = Counter()

    def look(self, sight: Sight) -> None:
        self._loss.append(sight.loss_tokens)
        self._lengths.append(sight.length)
        self._splits[sight.split] += 1
        self._finish[str(sight.finish_reason)] += 1
        self._with_ids += bool(len(sight.completion_ids))
        flags = [*self._repeats(sight), *self._ids(sight)]
        flags += ["empty"] if is_empty(sight) else []
        flags += ["truncated"] if sight.truncated else []
        flags += ["repetition"] if is_degenerate(units_of(sight)) else []
        flags += ["prompt_echo"] if echoes_prompt(sight) else []
        flags += self._tools(sight)
        if sight.other_prompt is not None:
            self._rendered += 1
            flags += ["template_mismatch"] if sight.other_prompt else []
        thinking = self._think(sight)
        flags += [thinking] if thinking in ("unclosed", "orphan") else []
        bare = ["bare_close"] if thinking == Thinking.BARE_CLOSE else []  # settled at the end
        for flag in [*flags, *bare]:
            self._flags[flag] += 1
            if len(self._examples.setdefault(flag, [])) < EXAMPLES_KEPT:
                self._examples[flag].append(sight.id)
        self._keep(sight, flags, thinking)

    def _think(self, sight: Sight) -> str:
        found = thinking_of(sight, self._tokenizer)
        self._thinking[found] += 1
        if not sight.truncated:
            self._finished += 1
            self._closed_finished += found == Thinking.CLOSED
            self._bare_finished += found == Thinking.BARE_CLOSE
        return str(found)

    def _repeats(self, sight: Sight) -> Iterator[str]:
        answer, prompt = answer_digest(sight), prompt_digest(sight)
        if answer in self._answers:
            yield "identical"
        self._answers.add(answer)
        if prompt not in self._prompts:
            self._prompts[prompt] = sight.split
        elif self._prompts[prompt] == sight.split:
            yield "duplicate_prompt"
        else:
            yield "split_leakage"

    def _tools(self, sight: Sight) -> Iterator[str]:
        if sight.completion is None:
            return
        calls = calls_in(sight.completion, sight.tools, truncated=sight.truncated)
        self._calls += len(calls)
        problems = [call.problem for call in calls if call.problem]
        self._call_problems.update(problems)
        if problems:
            yield "bad_tool_call"
        if loops([*calls_of_messages(sight.messages or []), *calls]):
            yield "tool_loop"

    def _ids(self, sight: Sight) -> Iterator[str]:
        ids = sight.completion_ids
        if self._vocabulary is not None and (len(ids) or len(sight.prompt_ids)):
            top = max(max(ids, default=0), max(sight.prompt_ids, default=0))
            if top >= self._vocabulary:
                yield "beyond_vocabulary"
        if self._mask is not None and (self._mask in ids or self._mask in sight.prompt_ids):
            yield "mask_token"
        if self._tokenizer is not None and len(ids):
            allowed = self._tokenizer.markup_ids
            inside = [n for n in ids[:-1] if n in self._tokenizer.special_ids - allowed]
            self._special.update(inside)
            if inside:
                yield "special_inside"

    def _keep(self, sight: Sight, flags: list[str], thinking: str) -> None:
        """A few rows per flag, and the first plain ones, for a person to read."""
        for flag in flags or ["plain"]:
            room = SAMPLES_FLAGGED if flags else SAMPLES_PLAIN
            if len(self._kept.setdefault(flag, [])) < room:
                self._kept[flag].append(sample_entry(sight, flags, thinking, self._tokenizer))

    def samples(self) -> list[dict[str, Any]]:
        """Each row once, plain ones first."""
        order = ["plain", *sorted(self._kept.keys() - {"plain"})]
        rows = [row for flag in order for row in self._kept.get(flag, [])]
        return list({(row["split"], row["id"]): row for row in rows}.values())

    def report(self, *, source: str) -> dict[str, Any]:
        rows = len(self._loss)
        if not rows:
            raise InputInvalid(f"{source} holds no row", "Let the step before it finish first.")
        thinking = self._settled_thinking()
        shares: dict[str, float | None] = {flag: self._flags[flag] / rows for flag in FLAGS}
        shares["orphan"] = thinking["orphan"] / rows
        # Not looked for is not the same as not found.
        if self._vocabulary is None or not self._with_ids:
            shares["beyond_vocabulary"] = None
        if self._tokenizer is None or not self._with_ids:
            shares["special_inside"] = None
        if self._mask is None or not self._with_ids:
            shares["mask_token"] = None
        if self._tokenizer is None and self._with_ids and not self._calls:
            shares["bad_tool_call"] = shares["tool_loop"] = None
        shares["template_mismatch"] = (
            self._flags["template_mismatch"] / self._rendered if self._rendered else None
        )
        shares["mask_clash"] = self._clash()
        return {
            "format": "dflash-audit/1",
            "source": source,
            "rows": rows,
            "splits": {name: count for name, count in sorted(self._splits.items()) if name},
            "with_ids": self._with_ids,
            "loss_tokens": distribution(self._loss),
            "length": distribution(self._lengths),
            "finish_reasons": dict(self._finish.most_common()),
            "shares": shares,
            "thinking": {
                "counts": thinking,
                "finished": self._finished,
                "closed_of_finished": self._closed_share(),
            },
            "tool_calls": {
                "count": self._calls,
                "problems": dict(self._call_problems.most_common(8)),
            },
            "special_ids": self._named_specials(),
            "mask_token_id": self._mask,
            "examples": self._settled_examples(),
        }

    def _opened_in_prompt(self) -> bool:
        """No row opens a thought and some close one: the template opened it (Qwen3.5 and on)."""
        opened = sum(self._thinking[kind] for kind in (Thinking.CLOSED, Thinking.UNCLOSED))
        return not opened and not self._thinking[Thinking.EMPTY]

    def _settled_thinking(self) -> dict[str, int]:
        counts = {str(kind): self._thinking[kind] for kind in Thinking}
        bare = counts.pop("bare_close")
        counts["closed" if self._opened_in_prompt() else "orphan"] += bare
        return counts

    def _settled_examples(self) -> dict[str, list[str]]:
        examples = dict(self._examples)
        bare = examples.pop("bare_close", [])
        if bare and not self._opened_in_prompt():
            examples["orphan"] = [*examples.get("orphan", []), *bare][:EXAMPLES_KEPT]
        return examples

    def _closed_share(self) -> float | None:
        if not self._finished:
            return None
        bare = self._bare_finished if self._opened_in_prompt() else 0
        return (self._closed_finished + bare) / self._finished

    def _clash(self) -> float | None:
        """1 when the mask token has another meaning for the target, 0 when not."""
        if self._mask is None or self._tokenizer is None:
            return None
        return float(self._mask in self._tokenizer.role_ids)

    def _named_specials(self) -> dict[str, int]:
        if self._tokenizer is None:
            return {}
        names = {number: content for content, number in self._tokenizer.added.items()}
        return {names[number]: count for number, count in self._special.most_common()}
