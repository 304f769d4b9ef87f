"""From the answers of a run of servers to rates, a table and a decision in one sentence. Pure."""

from __future__ import annotations

from statistics import mean, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


def summary(
    answers: Sequence[tuple[float, float, int, str]], errors: Sequence[str], *, full_s: float
) -> dict[str, Any]:
    """Rates of one run. While all places were taken counts: the end, with a few long answers left,
    would make many at a time look worse than they are.
    """
    requests = len(answers) + len(errors)
    row: dict[str, Any] = {"requests": requests, "failed": len(errors), "tok_s": 0.0}
    if errors:
        row["error"] = errors[-1][:200]
    if not answers:
        return row
    end = max(end for _, end, _, _ in answers)
    full_s = min(full_s, end)
    in_full = sum(
        tokens * max(0.0, min(stop, full_s) - start) / max(stop - start, 1e-9)
        for start, stop, tokens, _ in answers
    )
    times = [stop - start for start, stop, _, _ in answers]
    cuts = quantiles(times, n=20) if len(times) > 1 else [times[0]] * 19
    whole = sum(tokens for _, _, tokens, _ in answers) / end
    return row | {
        "tok_s": round(in_full / full_s if full_s > end / 4 else whole, 1),
        "tok_s_whole": round(whole, 1),
        "seconds": round(end, 1),
        "p50_s": round(cuts[9], 2),
        "p95_s": round(cuts[18], 2),
        "mean_tokens": round(mean(tokens for _, _, tokens, _ in answers), 1),
        "cut_off": round(mean(finish == "length" for *_, finish in answers), 3),
    }


def agreement(texts: Sequence[Sequence[Any]], first: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """The share of greedy beginnings that are the first variant's, alone and after the load."""
    before, after = texts
    return {"agrees": _share(before, first[0]), "agrees_after": _share(after, first[0])}


def _share(texts: Sequence[Any], others: Sequence[Any]) -> float | None:
    pairs = list(zip(texts, others, strict=False))
    return round(mean(a is not None and a == b for a, b in pairs), 3) if pairs else None


def table(report: dict[str, Any]) -> str:
    """The rows for a person."""
    lines = [
        (
            f"{'variant':<16} {'at a time':>9} {'tok/s':>9} {'p50 s':>8} {'p95 s':>8} "
            f"{'accept':>7} {'same':>6} {'failed':>7}"
        )
    ]
    told = set()
    for row in report["rows"]:
        problem = row["problem"] if row["problem"] not in told else "as above"
        told.add(row["problem"])
        accept, same = row.get("accept_length"), row["agrees_after"]
        mark = "*" if row is report["best"] else ""
        lines.append(
            f"{row['variant'] + mark:<16} {row['concurrency']:>9} {row['tok_s']:>9,.1f} "
            f"{row.get('p50_s', 0):>8.2f} {row.get('p95_s', 0):>8.2f} "
            f"{'-' if accept is None else f'{accept:.2f}':>7} "
            f"{'-' if same is None else f'{same:.0%}':>6} {row['failed']:>7}"
            + (f"  {problem}" if row["problem"] else "")
        )
    return "\n".join(lines) + "\n"


def decision(report: dict[str, Any]) -> str:
    """The choice in one sentence, with the figures it stands on."""
    best, asked = report["best"], report["asked"]
    tops: dict[str, dict[str, Any]] = {}
    for row in report["rows"]:
        if row["variant"] != best["variant"] and not row["problem"]:
            known = tops.get(row["variant"])
            if known is None or row["tok_s"] > known["tok_s"]:
                tops[row["variant"]] = row
    others = ", ".join(
        f"{name} {row['tok_s']:,.0f} at {row['concurrency']}" for name, row in tops.items()
    )
    out = sorted({row["variant"] for row in report["rows"] if row["problem"]} - {best["variant"]})
    return (
        f"servers run as `{best['variant']}` with {best['concurrency']} requests at a time: "
        f"{best['tok_s']:,.0f} tok/s each on {asked['prompts']} prompts of up to "
        f"{asked['max_tokens']} tokens"
        + (f"; best of the others: {others}" if others else "")
        + (f"; no choice: {', '.join(out)}" if out else "")
    )
