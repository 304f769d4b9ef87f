"""`dflash bench`: one server after the other, each with other flags, on the same real prompts.

The rate of every variant at every concurrency, and which is best among those whose text can be
trusted. Texts are compared as well: greedily, a few prompts alone, before the load and after it,
with what the first variant said. A cache that restores something else is found by that.

Run again after anything, it goes on with what is not measured yet.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import secrets
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.bench_report import agreement, decision, summary, table
from dflash.client import Settings, complete
from dflash.errors import GateFailed, InputInvalid, UsageError
from dflash.files import read_json, write_json, write_text
from dflash.outcomes import Refused, Unavailable
from dflash.progress import Progress, write_out
from dflash.prompts import load_prompts
from dflash.sampling import refuse_impossible
from dflash.server_process import NotServing, counters, get, pools, ratios, served

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import httpx

    from dflash.prompts import Prompt

EXAMPLE = """example:
  python -m dflash bench --prompts prompts.jsonl --out bench --concurrency 16 --concurrency 64 \\
    --variant '{"name": "plain", "argv": ["sglang", "serve", "--port", "30000", ...],
                "url": "http://127.0.0.1:30000", "model": "qwen3"}'"""
COMPARED, COMPARED_TOKENS = 16, 48
WARM_UP = 4
ADJUSTABLE = "{token}"
"""Word of an argv in whose place each start of a server gets a token of its own."""
KEPT = {"key": str, "texts": [list], "rows": [dict]}
"""What a file of results has, and of which kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A server to be tried."""

    name: str
    argv: tuple[str, ...]
    url: str
    model: str
    api: str = "sglang"
    env: dict[str, str] = dataclasses.field(default_factory=dict)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--prompts", required=True, type=Path, metavar="FILE", help="one prompt a line, JSON")
    add("--variant", required=True, action="append", metavar="JSON", help="a server; many times")
    add("--concurrency", required=True, action="append", type=int, metavar="K", help="many times")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder of results")
    add("--limit", type=int, default=1000, metavar="N", help="prompts of each run (%(default)s)")
    add("--max-tokens", type=int, default=2048, metavar="N", help="a completion (%(default)s)")
    add("--temperature", type=float, default=1.0, metavar="T", help="(%(default)s)")
    add("--top-p", type=float, metavar="P")
    add("--top-k", type=int, metavar="K")
    add("--thinking", default="default", choices=["on", "off", "default"], help="(%(default)s)")
    add("--ready-within", type=float, default=900.0, metavar="SECONDS", help="(%(default)s)")
    add("--request-timeout", type=float, default=3600.0, metavar="SECONDS", help="(%(default)s)")
    add("--max-failed", type=float, default=0.01, metavar="SHARE",
        help="of requests; more, and a variant is no choice (%(default)s)")  # fmt: skip
    add("--min-agreement", type=float, default=0.7, metavar="SHARE",
        help="of greedy texts that begin as the first variant's (%(default)s)")  # fmt: skip


def run(args: argparse.Namespace) -> int:
    variants = [_variant(text) for text in args.variant]
    if len({one.name for one in variants}) < len(variants):
        raise UsageError("two variants have one name")
    refuse_impossible(args, positive=("request_timeout", "ready_within"))
    if min(args.concurrency) < 1 or args.limit < 1:
        raise UsageError("--concurrency and --limit start at 1")
    prompts = load_prompts(args.prompts, limit=args.limit)
    if not prompts:
        raise UsageError(f"{args.prompts} has no prompts")
    sampling = {"max_tokens": args.max_tokens, "temperature": args.temperature,
                "top_p": args.top_p, "top_k": args.top_k}  # fmt: skip
    bench = Bench(
        args=args,
        prompts=prompts,
        sampling={key: value for key, value in sampling.items() if value is not None},
        progress=Progress(echo=sys.stderr),
    )
    report = bench.all_of(variants)
    write_json(args.out / "report.json", report)
    write_text(args.out / "report.txt", table(report))
    best = report["best"]
    if best is None:
        raise GateFailed(
            "no variant served well enough to be chosen: "
            + "; ".join(f"{row['variant']}: {row['problem']}" for row in report["rows"][:4]),
            f"See {args.out / 'report.txt'} and the servers' logs beside it.",
        )
    write_out({**best, "path": str(args.out), "decision": decision(report)})
    return 0


def _variant(text: str) -> Variant:
    try:
        value = json.loads(text)
        found = Variant(**{**value, "argv": tuple(map(str, value["argv"]))})
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"--variant {text[:80]} is none ({error})", EXAMPLE) from error
    return dataclasses.replace(found, url=found.url.rstrip("/"))


@dataclass(slots=True, kw_only=True)
class Bench:
    """All variants, one after the other."""

    args: argparse.Namespace
    prompts: Sequence[Prompt]
    sampling: dict[str, Any]
    progress: Progress

    def all_of(self, variants: Sequence[Variant]) -> dict[str, Any]:
        """Measures what is not measured yet; the report."""
        self.args.out.mkdir(parents=True, exist_ok=True)
        rows: list[dict[str, Any]] = []
        first: list[list[Any]] = [[], []]
        for number, variant in enumerate(variants):
            found = self._kept(variant) or self._measured(variant, number, len(variants))
            first = first if first[0] else found["texts"]
            same = agreement(found["texts"], first)
            rows += [{"variant": variant.name, **row, **same} for row in found["rows"]]
        for row in rows:
            row["problem"] = row.get("problem") or self._problem(row)
        sound = [row for row in rows if not row["problem"]]
        best = max(sound, key=lambda row: float(row["tok_s"]), default=None)
        asked = {"prompts": len(self.prompts), **self.sampling, "thinking": self.args.thinking}
        return {"asked": asked, "rows": rows, "best": best}

    def _problem(self, row: dict[str, Any]) -> str:
        if row["failed"] > self.args.max_failed * row["requests"]:
            return f"{row['failed']} of {row['requests']} requests failed: {row.get('error', '')}"
        for key, when in (("agrees", "alone"), ("agrees_after", "after the load")):
            if row[key] is not None and row[key] < self.args.min_agreement:
                return f"its greedy texts {when} are the first variant's in {row[key]:.0%} only"
        return ""

    def _key(self, variant: Variant) -> str:
        settings = [
            variant.argv,
            variant.env,
            variant.model,
            self.sampling,
            self.args.thinking,
            [prompt.digest for prompt in self.prompts],
            sorted(self.args.concurrency),
        ]
        return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]

    def _kept(self, variant: Variant) -> dict[str, Any] | None:
        path = self.args.out / f"{variant.name}.json"
        if not path.is_file():
            return None
        try:
            found = read_json(path, "the results of a variant", KEPT)
        except InputInvalid:  # torn by another hand: it is measured again
            return None
        return found if found.get("key") == self._key(variant) else None

    def _measured(self, variant: Variant, number: int, total: int) -> dict[str, Any]:
        token = secrets.token_hex(8)
        argv = [token if word == ADJUSTABLE else word for word in variant.argv]
        log = self.args.out / f"{variant.name}.log"
        self.progress.emit(
            "phase", done=number, total=total, unit="variants", message=f"{variant.name}: loading"
        )
        began = time.monotonic()
        found: dict[str, Any] = {"key": self._key(variant), "texts": [[], []]}
        try:
            with served(
                argv, variant.env, url=variant.url, token=token, log=log,
                within_s=self.args.ready_within,
            ):  # fmt: skip
                found["start_s"] = round(time.monotonic() - began, 1)
                found |= asyncio.run(self._rows(variant, number, total))
                found["pools"] = pools(log)
        except NotServing as error:
            found["rows"] = [
                {"concurrency": k, "tok_s": 0.0, "requests": 0, "failed": 0, "problem": str(error)}
                for k in sorted(self.args.concurrency)
            ]
            return found  # not kept: the next run tries it again
        for row in found["rows"]:
            row |= {"start_s": found["start_s"], "pools": found["pools"]}
        write_json(self.args.out / f"{variant.name}.json", found)
        return found

    async def _rows(self, variant: Variant, number: int, total: int) -> dict[str, Any]:
        import httpx

        api: Any = variant.api
        settings = Settings(
            model=variant.model, api=api, sampling=self.sampling, thinking=self.args.thinking
        )
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2)
        timeout = httpx.Timeout(self.args.request_timeout, connect=10)
        rows = []
        async with httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False) as http:
            before = await self._texts(http, variant, settings)
            for concurrency in sorted(self.args.concurrency):
                if variant.api == "sglang":  # else the second run would find all prompts cached
                    await asyncio.to_thread(get, variant.url + "/flush_cache", 30, post=True)
                began = await asyncio.to_thread(counters, variant.url)
                row = await measure(http, variant.url, self.prompts, settings, concurrency)
                ended = await asyncio.to_thread(counters, variant.url)
                rows.append({"concurrency": concurrency, **row, **ratios(began, ended)})
                self.progress.emit(
                    "step", done=number, total=total, unit="variants",
                    message=f"{variant.name}, {concurrency} at a time",
                    metrics={"tok/s": row["tok_s"], "failed": row["failed"]},
                )  # fmt: skip
            after = await self._texts(http, variant, settings)
        return {"texts": [before, after], "rows": rows}

    async def _texts(
        self, http: httpx.AsyncClient, variant: Variant, settings: Settings
    ) -> list[Any]:
        """Greedy beginnings, one request at a time: batches would round otherwise."""
        sampling = {"max_tokens": COMPARED_TOKENS, "temperature": 0.0}
        greedy = dataclasses.replace(settings, sampling=sampling)
        found: list[Any] = []
        for number, prompt in enumerate(self.prompts[:COMPARED]):
            try:
                answer = await complete(http, variant.url, prompt, greedy, rid=f"g{number}-{_id()}")
                found.append(answer.output_ids or answer.completion)
            except (Unavailable, Refused):
                found.append(None)
        return found


async def measure(
    http: httpx.AsyncClient,
    url: str,
    prompts: Sequence[Prompt],
    settings: Settings,
    concurrency: int,
) -> dict[str, Any]:
    """Every prompt once, so many at a time."""
    for prompt in prompts[:WARM_UP]:
        short = dataclasses.replace(settings, sampling={**settings.sampling, "max_tokens": 8})
        await _one(http, url, prompt, short)
    waiting = iter(prompts)
    answers: list[tuple[float, float, int, str]] = []
    errors: list[str] = []
    began, all_taken = time.monotonic(), [float("inf")]

    async def work() -> None:
        for prompt in waiting:
            start = time.monotonic() - began
            found = await _one(http, url, prompt, settings)
            if isinstance(found, str):
                errors.append(found)
            else:
                answers.append((start, time.monotonic() - began, *found))
        all_taken[0] = min(all_taken[0], time.monotonic() - began)

    await asyncio.gather(*(work() for _ in range(concurrency)))
    return summary(answers, errors, full_s=all_taken[0])


async def _one(
    http: httpx.AsyncClient, url: str, prompt: Prompt, settings: Settings
) -> tuple[int, str] | str:
    try:
        answer = await complete(http, url, prompt, settings, rid=_id())
    except (Unavailable, Refused) as error:
        return str(error)
    return answer.tokens, answer.finish_reason


def _id() -> str:
    return secrets.token_hex(8)
