"""The audit's numbers as text for people, and rows as entries of samples.json. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from dflash.answers import split_thinking

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dflash.measures import Sight
    from dflash.tokenizer import TargetTokenizer

BINS = 12
BAR = 40
CLIP = 4000  # characters of one text in samples.json
TOKENS_SHOWN = 400
EIGHTHS = " ▏▎▍▌▋▊▉█"


def distribution(counts: Mapping[int, int]) -> dict[str, Any]:
    """Order statistics, the mode with its share, and a histogram of equal widths."""
    ordered = sorted(counts.items())
    rows, total = sum(counts.values()), sum(value * times for value, times in ordered)
    ends = list(accumulate(times for _, times in ordered))
    mode, times = max(ordered, key=lambda pair: pair[1])

    def at(share: float) -> int:
        return ordered[bisect_right(ends, min(rows - 1, int(share * rows)))][0]

    return {
        "min": ordered[0][0],
        "p5": at(0.05),
        "p25": at(0.25),
        "p50": at(0.5),
        "p75": at(0.75),
        "p95": at(0.95),
        "max": ordered[-1][0],
        "mean": total / rows,
        "total": total,
        "mode": mode,
        "mode_share": times / rows,
        "histogram": histogram(ordered),
    }


def histogram(ordered: Sequence[tuple[int, int]]) -> list[dict[str, int]]:
    low, high = ordered[0][0], ordered[-1][0]
    width = max(1, -(-(high - low + 1) // BINS))
    rows: Counter[int] = Counter()
    for value, times in ordered:
        rows[(value - low) // width] += times
    bins = (high - low) // width + 1
    return [
        {"from": low + n * width, "to": low + (n + 1) * width - 1, "rows": rows[n]}
        for n in range(bins)
    ]


def render(report: Mapping[str, Any]) -> str:
    lines = [f"{report['source']}: {report['rows']:,} rows{_splits(report)}", ""]
    lines += [f"{'ok  ' if g['passed'] else 'FAIL'} {g['sentence']}" for g in report["gates"]]
    lines += ["", *_table("loss tokens a row", report["loss_tokens"])]
    lines += ["", *_table("tokens a row", report["length"])]
    lines += ["", "finish reasons: " + _counts(report["finish_reasons"])]
    lines += ["thinking: " + _counts(report["thinking"]["counts"])]
    if report["tool_calls"]["count"]:
        calls = report["tool_calls"]
        lines += [f"tool calls: {calls['count']:,}; wrong: {_counts(calls['problems'])}"]
    if report["special_ids"]:
        lines += ["special tokens inside: " + _counts(report["special_ids"])]
    lines += ["", "share of rows"]
    for name, share in report["shares"].items():
        shown = "unknown" if share is None else f"{share:.2%}"
        examples = ", ".join(report["examples"].get(name, [])[:3])
        lines.append(f"  {name.replace('_', ' '):<18} {shown:>8}  {examples}".rstrip())
    return "\n".join(lines) + "\n"


def _splits(report: Mapping[str, Any]) -> str:
    return f" ({_counts(report['splits'])})" if report["splits"] else ""


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items()) or "none"


def _table(title: str, numbers: Mapping[str, Any] | None) -> list[str]:
    if numbers is None:
        return [f"{title}: unknown, no row has token ids or counts; audit the tokenized set"]
    order = ("min", "p5", "p25", "p50", "p75", "p95", "max")
    lines = [
        (
            f"{title}: mean {numbers['mean']:,.1f}, total {numbers['total']:,}, "
            f"most often {numbers['mode']:,} ({numbers['mode_share']:.1%})"
        ),
        "  " + "  ".join(f"{name} {numbers[name]:,}" for name in order),
    ]
    most = max(row["rows"] for row in numbers["histogram"])
    width = len(f"{numbers['max']:,}")
    for row in numbers["histogram"]:
        span = f"{row['from']:>{width},}-{row['to']:<{width},}"
        lines.append(f"  {span} {_bar(row['rows'], most)} {row['rows']:,}")
    return lines


def _bar(value: int, most: int) -> str:
    eighths = round(value * BAR * 8 / max(most, 1))
    if value and not eighths:
        eighths = 1  # what is there must show
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def sample_entry(
    sight: Sight, flags: list[str], thinking: str, tokenizer: TargetTokenizer | None
) -> dict[str, Any]:
    """One row for a person to read, clipped; with a tokenizer also its tokens and their loss."""
    entry: dict[str, Any] = {
        "id": sight.id,
        "split": sight.split,
        "flags": flags,
        "thinking": thinking,
        "finish_reason": sight.finish_reason,
        "length": sight.length,
        "loss_tokens": sight.loss_tokens,
    }
    if sight.messages is not None:
        entry["messages"] = [
            {"role": message.get("role"), "content": str(message.get("content"))[:CLIP]}
            for message in sight.messages
        ]
    if sight.completion is not None:
        reasoning, content = split_thinking(sight.completion)
        entry["reasoning"] = reasoning[:CLIP] if reasoning is not None else None
        entry["content"] = content[:CLIP]
    if tokenizer is not None and len(sight.completion_ids):
        entry["tokens"] = _tokens(sight, tokenizer)
    return entry


def _tokens(sight: Sight, tokenizer: TargetTokenizer) -> list[dict[str, Any]]:
    """The edge of the mask in the middle: the end of the prompt, then what was generated."""
    prompt = list(sight.prompt_ids)[-TOKENS_SHOWN // 4 :]
    made = list(sight.completion_ids)[: TOKENS_SHOWN - len(prompt)]
    return [
        {"id": number, "text": _safe_decode(tokenizer, number), "loss": loss}
        for ids, loss in ((prompt, 0), (made, 1))
        for number in ids
    ]


def _safe_decode(tokenizer: TargetTokenizer, number: int) -> str:
    return tokenizer.decode([number]) if 0 <= number < tokenizer.vocab_size else "�"
