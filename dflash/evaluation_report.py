"""From per-prompt records to the numbers of a report and its short table. Pure and torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dflash.statistics import (
    Round,
    acceptance_length,
    histogram,
    macro,
    micro,
    paired_bootstrap,
    paired_differences,
    slots,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLAIN, TRAINED = "plain", "trained"
VERDICTS = ("exact", "near_tie", "diverged")
METHOD = {
    "acceptance_length": {"macro": (float, None), "micro": (float, None)},
    "slots": [{"rate": float}],
    "speed": {"speedup": (float, None)},
}
TOLD = {
    "lossless": {"verdict": str},
    "speed": {"speedup": (float, None), "tokens_per_s": (float, None)},
}
COMPARED = {
    "methods": {"trained": METHOD, "*": METHOD},
    "lossless": {"verdict": str},
    "per_prompt": [{"id": (str, int), "methods": {"trained": {"acceptance_length?": float}}}],
    "request": {"target": dict, "drafter": {"path": str}, "prompts": dict, "sampling": dict},
}
REPORT = COMPARED | {
    "prompts": int,
    "methods": {"trained": METHOD, "*": METHOD | TOLD},
    "lossless": {"verdict": str, "ok": bool},
    "comparison": {"*": {"mean": float, "low": float, "high": float, "level": float, "pairs": int}},
}
"""What is taken of a report that was read: to compare it, or to tell it again."""


def summarise(
    records: Sequence[Mapping[str, Any]], methods: Sequence[str], *, greedy: bool, seed: int
) -> dict[str, Any]:
    """Everything below the request: methods, comparisons, lossless verdict, prompts."""
    rounds = {m: {r["id"]: _rounds(r["methods"][m]) for r in records} for m in methods}
    summary: dict[str, Any] = {
        "prompts": len(records),
        "prompt_tokens": sum(r["prompt_tokens"] for r in records),
        "methods": {m: _method(m, records, list(rounds[m].values()), greedy) for m in methods},
        "comparison": {},
    }
    verdicts = [summary["methods"][m]["lossless"]["verdict"] for m in methods if m != PLAIN]
    worst = max(verdicts, key=VERDICTS.index) if greedy else "not_applicable"
    summary["lossless"] = {"verdict": worst, "ok": worst != "diverged"}
    for other in methods:
        pairs = paired_differences(rounds[TRAINED], rounds[other]) if TRAINED in rounds else []
        if other not in (PLAIN, TRAINED) and pairs:
            interval = paired_bootstrap(pairs, seed=seed).to_json()
            summary["comparison"][f"trained_minus_{other}"] = {
                "metric": "macro acceptance length",
                **interval,
            }
    summary["per_prompt"] = [_prompt(r, methods) for r in records]
    return summary


def _rounds(record: Mapping[str, Any]) -> list[Round]:
    return [Round(proposed=p, accepted=a, produced=n) for p, a, n in record["rounds"]]


def _method(
    name: str, records: Sequence[Mapping[str, Any]], rounds: list[list[Round]], greedy: bool
) -> dict[str, Any]:
    mine = [r["methods"][name] for r in records]
    plain = [r["methods"][PLAIN] for r in records]
    speed = _speed(mine)
    base = _speed(plain)["seconds_per_token"]
    if base and speed["seconds_per_token"]:
        speed["speedup"] = base / speed["seconds_per_token"]
    return {
        "acceptance_length": {"macro": macro(rounds), "micro": micro(rounds)},
        "slots": [slot.to_json() for slot in slots(rounds)],
        "histogram": histogram(rounds),
        "counts": {
            "tokens": sum(len(m["tokens"]) for m in mine),
            "rounds": sum(len(r) for r in rounds),
            "produced": sum(x.produced for r in rounds for x in r),
            "drafted": sum(x.proposed for r in rounds for x in r),
            "accepted": sum(x.accepted for r in rounds for x in r),
            "prompts_without_rounds": sum(not r for r in rounds),
            "ended_by_stop": sum(m["ended"] == "stop" for m in mine),
        },
        "lossless": _lossless(name, records, greedy),
        "speed": speed,
    }


def _speed(mine: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Decode time only, over the tokens after the first, which the prompt's forward gives."""
    timed = [(m["decode_s"], len(m["tokens"]) - 1) for m in mine if len(m["tokens"]) > 1]
    if not timed:
        return {"seconds_per_token": None, "tokens_per_s": None, "speedup": None}
    per_token = [seconds / tokens for seconds, tokens in timed]
    total, tokens = sum(s for s, _ in timed), sum(n for _, n in timed)
    return {
        "seconds_per_token": sum(per_token) / len(per_token),  # mean over prompts
        "tokens_per_s": tokens / total if total else None,  # over everything
        "decode_s": total,
        "propose_s": sum(m["propose_s"] for m in mine),
        "speedup": None,
    }


def _lossless(name: str, records: Sequence[Mapping[str, Any]], greedy: bool) -> dict[str, Any]:
    if name == PLAIN or not greedy:
        return {"verdict": "reference" if name == PLAIN else "not_applicable"}
    found = [{"id": r["id"], **d} for r in records if (d := r["methods"][name].get("divergence"))]
    ties = sum(d["kind"] == "near_tie" for d in found)
    worst = "diverged" if len(found) > ties else "near_tie" if ties else "exact"
    # A plain error hides behind a tie in a list sorted by prompt; the worst comes first.
    found.sort(key=lambda d: d["kind"] == "near_tie")
    return {
        "verdict": worst,
        "exact": len(records) - len(found),
        "near_tie": ties,
        "diverged": len(found) - ties,
        "first_divergence": found[0] if found else None,
        "divergences": found,
    }


def _prompt(record: Mapping[str, Any], methods: Sequence[str]) -> dict[str, Any]:
    return {
        "id": record["id"],
        "prompt_tokens": record["prompt_tokens"],
        "prefill_s": record["prefill_s"],
        "methods": {
            m: {
                "tokens": len(record["methods"][m]["tokens"]),
                "rounds": len(record["methods"][m]["rounds"]),
                "acceptance_length": acceptance_length(_rounds(record["methods"][m])),
                "ended": record["methods"][m]["ended"],
                "decode_s": record["methods"][m]["decode_s"],
            }
            for m in methods
        },
    }


def table(report: Mapping[str, Any]) -> str:
    """What a person reads first."""
    head = (
        f"{'method':<10} {'macro':>6} {'micro':>6} {'slot 1':>7} {'tok/s':>7} {'speed-up':>9}  text"
    )
    lines = [head]
    for name, found in report["methods"].items():
        first = found["slots"][0]["rate"] if found["slots"] else None
        length, speed = found["acceptance_length"], found["speed"]
        lines.append(
            f"{name:<10} {_cell(length['macro'], 6)} {_cell(length['micro'], 6)} {_cell(first, 7)} "
            f"{_cell(speed['tokens_per_s'], 7)} {_cell(speed['speedup'], 8)}x  "
            f"{_text(found['lossless'])}"
        )
    rates = [f"{slot['rate']:.2f}" for slot in report["methods"]["trained"]["slots"]]
    if rates:
        lines.append("trained, accepted by slot where the one before was: " + " ".join(rates))
    for name, interval in report["comparison"].items():
        lines.append(
            f"{name.replace('_', ' ')}: {interval['mean']:+.3f} tokens a round "
            f"({interval['level']:.0%} interval {interval['low']:+.3f} to {interval['high']:+.3f}, "
            f"{interval['pairs']} prompts)"
        )
    return "\n".join(lines)


def _cell(value: float | None, width: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:>{width}.2f}"


def _text(lossless: Mapping[str, Any]) -> str:
    words = {"reference": "the reference", "not_applicable": "sampled", "exact": "equal to plain"}
    verdict = lossless["verdict"]
    if verdict in words:
        return words[verdict]
    first = lossless.get("first_divergence")
    if not first:
        return str(verdict)
    count = f"{lossless['near_tie']} near ties, {lossless['diverged']} differ"
    gap = f", gap {first['below_best']:.2g}" if "below_best" in first else ""
    return f"{count} (first: {first['id']} at token {first['index']}{gap})"
