"""`dflash generate`: prompts and servers in, a folder of completions out, resumable by id.

Run again after anything - a kill, a full disk, a mended prompt file, other servers - it goes on
with the prompts that have no row yet.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import secrets
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.client import Answer, Settings
from dflash.completions import CompletionStore
from dflash.dispatch import Dispatcher, Limits, Server, Work
from dflash.errors import DflashError, InputInvalid, Interrupted, UsageError
from dflash.progress import Progress, write_out
from dflash.prompts import Prompt, load_prompts

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

EXAMPLE = """example:
  dflash generate --prompts prompts.jsonl --server http://127.0.0.1:30000 \\
    --server http://127.0.0.1:30001 --model qwen3 --out completions --max-tokens 4096"""
PROGRESS_SECONDS = 2.0
RATE_SECONDS = 120.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    add = parser.add_argument
    add("--prompts", required=True, type=Path, metavar="FILE", help="one prompt a line, JSON")
    add("--server", required=True, action="append", metavar="URL", help="may be given many times")
    add("--model", required=True, metavar="NAME", help="the name the servers serve it under")
    add("--out", required=True, type=Path, metavar="DIR", help="the folder of completions")
    add("--api", default="sglang", choices=["sglang", "openai"], help="(%(default)s)")
    add("--max-tokens", type=int, default=2048, metavar="N", help="a completion (%(default)s)")
    add("--temperature", type=float, default=1.0, metavar="T", help="(%(default)s)")
    add("--top-p", type=float, metavar="P")
    add("--top-k", type=int, metavar="K", help="not known to every --api openai server")
    add("--min-p", type=float, metavar="P", help="not known to every --api openai server")
    add("--presence-penalty", type=float, metavar="X", help="against looping thoughts")
    add("--seed", type=int, metavar="S", help="each prompt gets its own from it")
    add("--thinking", default="default", choices=["on", "off", "default"], help="(%(default)s)")
    add("--system", metavar="TEXT", help="for prompts without a system message")
    add("--concurrency", type=int, default=16, metavar="K", help="per server (%(default)s)")
    add("--shard-rows", type=int, default=500, metavar="N", help="(%(default)s)")
    add("--limit", type=int, metavar="N", help="only the first N prompts")
    add("--attempts", type=int, default=5, metavar="N", help="of one prompt (%(default)s)")
    add("--request-timeout", type=float, default=3600.0, metavar="SECONDS", help="(%(default)s)")
    add(
        "--give-up-after",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="with no server answering (%(default)s)",
    )
    add(
        "--max-failed",
        type=float,
        default=0.01,
        metavar="SHARE",
        help="of prompts without an answer before the command fails (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    if args.concurrency < 1 or args.shard_rows < 1 or args.max_tokens < 1 or args.attempts < 1:
        raise UsageError("--concurrency, --shard-rows, --max-tokens and --attempts start at 1")
    for url in args.server:
        if not url.startswith(("http://", "https://")):
            raise UsageError(f"--server {url} is no URL", "Write it as http://HOST:PORT.")
    generate(
        prompts=load_prompts(args.prompts, limit=args.limit, system=args.system),
        servers=list(dict.fromkeys(url.rstrip("/").removesuffix("/v1") for url in args.server)),
        settings=settings_of(args),
        out=args.out,
        limits=Limits(
            concurrency=args.concurrency,
            attempts=args.attempts,
            give_up_after=args.give_up_after,
        ),
        shard_rows=args.shard_rows,
        request_timeout=args.request_timeout,
        max_failed=args.max_failed,
        progress=Progress(echo=sys.stderr),
    )
    return 0


def settings_of(args: argparse.Namespace) -> Settings:
    """Sampling is always sent in full: what is left out, the server takes from elsewhere."""
    sampling = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "top_k": args.top_k,
        "min_p": args.min_p,
        "presence_penalty": args.presence_penalty,
        "seed": args.seed,
    }
    return Settings(
        model=args.model,
        api=args.api,
        thinking=args.thinking,
        sampling={name: value for name, value in sampling.items() if value is not None},
        system=args.system,
    )


def generate(
    *,
    prompts: Sequence[Prompt],
    servers: Sequence[str],
    settings: Settings,
    out: Path,
    limits: Limits,
    shard_rows: int = 500,
    request_timeout: float = 3600.0,
    max_failed: float = 0.01,
    progress: Progress,
) -> dict[str, Any]:
    """Complete every prompt that has no row yet; returns the folder's manifest."""
    with CompletionStore(out, settings=settings.as_dict(), shard_rows=shard_rows) as store:
        for notice in store.notices:
            progress.emit("step", message=notice)
        todo = [prompt for prompt in prompts if prompt.id not in store.done]
        _refuse_changed(prompts, store.done, out)
        session = _Session(store, settings, total=len(prompts), progress=progress)
        session.begin(len(todo), servers)
        if todo:
            store.reopen()
            asyncio.run(session.run(servers, todo, limits, request_timeout))
        enough = session.failed <= max_failed * len(prompts)
        manifest = store.finish(complete=enough, failed=session.failed)
        session.end(manifest)
    if not enough:
        raise DflashError(
            f"{session.failed} of {len(prompts)} prompts got no answer, "
            f"the latest because of {session.last_failure}",
            f"See {out / 'failed.jsonl'}; run the same command again to try them again.",
        )
    return manifest


def _refuse_changed(prompts: Sequence[Prompt], done: dict[str, str], out: Path) -> None:
    changed = [
        prompt.id for prompt in prompts if done.get(prompt.id, prompt.digest) != prompt.digest
    ]
    if changed:
        raise InputInvalid(
            f"{len(changed)} prompts, first {changed[0]!r}, differ from those answered in {out}",
            "Give changed prompts new ids, or use another --out.",
        )


class _Session:
    """One run of the command: rows into the store, counts into the progress file."""

    def __init__(
        self, store: CompletionStore, settings: Settings, *, total: int, progress: Progress
    ) -> None:
        self.failed = 0
        self.last_failure = ""
        self._store = store
        self._settings = settings
        self._total = total
        self._progress = progress
        self._truncated = 0
        self._tokens = 0
        self._resumed = total
        self._started = time.monotonic()
        self._recent: collections.deque[tuple[float, int]] = collections.deque()
        self._dispatcher: Dispatcher | None = None

    def begin(self, todo: int, servers: Sequence[str]) -> None:
        self._resumed = self._total - todo
        message = f"{todo} prompts to complete on {len(servers)} servers"
        if self._resumed:
            message += f", {self._resumed} are done already"
        if self._settings.api != "sglang":
            message += "; this API gives no token ids, tokenize will encode the text again"
        self._emit("phase", message)

    async def run(
        self, servers: Sequence[str], todo: Sequence[Prompt], limits: Limits, patience: float
    ) -> None:
        import httpx

        main = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
                loop.add_signal_handler(number, main.cancel if main else lambda: None)
        self._dispatcher = Dispatcher(
            servers,
            settings=self._settings,
            limits=limits,
            run_id=secrets.token_hex(3),  # a killed run's request ids may still be in flight
            finished=self._finished,
            failed=self._failed,
        )
        # Idle connections are closed by the server after 5 s; ours go first, or a request is lost.
        pool = httpx.Limits(max_connections=None, keepalive_expiry=3.0)
        timeout = httpx.Timeout(patience, connect=10.0)
        ticker = asyncio.create_task(self._tick())
        try:
            # Servers are addressed directly; a proxy in the environment is for the outer world.
            async with httpx.AsyncClient(limits=pool, timeout=timeout, trust_env=False) as http:
                await self._dispatcher.run(http, todo)
        except asyncio.CancelledError:
            raise Interrupted(
                f"stopped with {len(self._store.done)} rows finished and kept",
                "Run the same command again to go on.",
            ) from None
        finally:
            ticker.cancel()

    def end(self, manifest: dict[str, Any]) -> None:
        message = f"{manifest['rows']} rows, {manifest['tokens']:,} tokens"
        if self.failed:
            message += f", {self.failed} without an answer"
        self._emit("done", message)
        write_out(
            {
                "path": str(self._store.path.absolute()),
                "rows": manifest["rows"],
                "tokens": manifest["tokens"],
                "failed": self.failed,
                "truncated": self._truncated,
                "complete": manifest["complete"],
            }
        )

    def _finished(self, work: Work, server: Server, answer: Answer, seconds: float) -> None:
        if server.identity:
            self._store.note_server(server.url, server.identity)
        self._store.add(record_of(work, server.url, answer, seconds, self._settings))
        self._truncated += answer.finish_reason == "length"
        self._tokens += answer.tokens
        self._recent.append((time.monotonic(), answer.tokens))

    def _failed(self, work: Work) -> None:
        self.failed += 1
        self.last_failure = work.reasons[-1]
        failure = {"id": work.prompt.id, "attempts": work.attempts, "reasons": work.reasons[-5:]}
        self._store.add_failure(failure)

    async def _tick(self) -> None:
        while True:
            # Slower as the run grows long: days of work must not become a file of megabytes.
            elapsed = time.monotonic() - self._started
            await asyncio.sleep(min(PROGRESS_SECONDS + elapsed / 120, 10.0))
            self._emit("step", "")

    def _rate(self) -> float:
        """Tokens come in whole completions, so only a long window says anything."""
        now = time.monotonic()
        while self._recent and now - self._recent[0][0] > RATE_SECONDS:
            self._recent.popleft()
        elapsed = max(now - self._started, 1e-3)
        return sum(count for _, count in self._recent) / min(elapsed, RATE_SECONDS)

    def _emit(self, kind: Any, message: str) -> None:
        metrics: dict[str, Any] = {"tok/s": round(self._rate(), 1), "tokens": self._tokens}
        if self._truncated:
            metrics["truncated"] = self._truncated
        if self.failed:
            metrics["failed"] = self.failed
        if self._dispatcher is not None:
            metrics["running"] = sum(server.running for server in self._dispatcher.servers)
            if self._dispatcher.retries:
                metrics["retries"] = self._dispatcher.retries
            metrics["servers"] = {
                server.name: server.counts() for server in self._dispatcher.servers
            }
        self._progress.emit(
            kind,
            done=len(self._store.done),
            total=self._total,
            unit="rows",
            message=message,
            metrics=metrics,
        )


def record_of(
    work: Work, url: str, answer: Answer, seconds: float, settings: Settings
) -> dict[str, Any]:
    """One line of a shard."""
    prompt = work.prompt
    record: dict[str, Any] = {"id": prompt.id, "messages": prompt.messages}
    if prompt.tools:
        record["tools"] = prompt.tools
    record["completion"] = answer.completion
    if answer.reasoning is not None:
        record["reasoning"] = answer.reasoning
    record["content"] = answer.content
    if answer.output_ids is not None:
        record["output_ids"] = answer.output_ids
    if answer.input_ids is not None:
        record["input_ids"] = answer.input_ids
    record.update(
        finish_reason=answer.finish_reason,
        matched_stop=answer.matched_stop,
        usage=answer.usage,
        model=settings.model,
        sampling=settings.sampling,
        thinking=settings.thinking,
        api=settings.api,
        server=url,
        attempt=work.attempts + 1,
        seconds=round(seconds, 3),
        finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    if prompt.meta:
        record["meta"] = prompt.meta
    return record
