"""One run of `dflash generate`: answers into the folder, counts into the progress file."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import signal
import time
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dflash import keys
from dflash.connections import Connections
from dflash.dispatch import Dispatcher, Limits, Work
from dflash.errors import Interrupted
from dflash.progress import write_out
from dflash.servers import Meter, Server, ServerList

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dflash.answers import Answer
    from dflash.client import Settings
    from dflash.completions import CompletionStore
    from dflash.early_audit import EarlyAudit
    from dflash.outbox import Outbox
    from dflash.progress import Kind, Progress
    from dflash.prompts import Prompt
    from dflash.quarantine import Quarantine

PROGRESS_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 10.0


class Run:
    """What one run has to do with, and how far it is."""

    def __init__(
        self,
        store: CompletionStore,
        settings: Settings,
        *,
        total: int,
        todo: int,
        held: int,
        audit: EarlyAudit | None,
        quarantine: Quarantine,
        outbox: Outbox | None,
        progress: Progress,
    ) -> None:
        self.failed = held
        self.last_failure = ""
        self.spent = False
        self._store = store
        self._settings = settings
        self._total = total
        self._todo = todo
        self._before = total - todo - held
        self._audit = audit
        self._quarantine = quarantine
        self._outbox = outbox
        self._progress = progress
        self._truncated = 0
        self._done = 0
        self._tokens = 0
        self._meter = Meter()
        self._dispatcher: Dispatcher | None = None
        self._told: set[str] = set()

    def begin(self, servers: int, dropped_turns: int) -> None:
        parts = [f"{_many(self._todo, 'answer')} wanted from {_many(servers, 'server')}"]
        if self._before:
            parts.append(f"{self._before:,} are there already")
        if self.failed:
            parts.append(f"{self.failed:,} in quarantine")
        if dropped_turns:
            parts.append(f"{_many(dropped_turns, 'turn')} behind a tool's answer left out")
        if self._settings.api != "sglang":
            parts.append("this API gives no token ids, tokenize will encode the text again")
        self.emit("phase", "; ".join(parts))

    async def run(
        self, servers: ServerList, prompts: Iterator[Prompt], limits: Limits, patience: float
    ) -> None:
        """Until no prompt is left, or the budget is used up."""
        stopping = _cancelled_by_signals()
        self._dispatcher = Dispatcher(
            servers,
            settings=self._settings,
            limits=limits,
            run_id=secrets.token_hex(3),  # a killed run's request ids may still be in flight
            finished=self._finished,
            failed=self._failed,
        )
        ticker = asyncio.create_task(self._tick())
        try:
            async with Connections(patience=patience) as http:
                await self._dispatcher.run(http, prompts)
        except asyncio.CancelledError:
            raise Interrupted(
                f"stopped with {len(self._store.done):,} rows finished and kept",
                "Run the same command again to go on.",
            ) from None
        finally:
            ticker.cancel()
            stopping()
        self.spent = self._dispatcher.spent
        if self._audit is not None:
            self._audit.judge()

    def end(self, manifest: dict[str, Any], not_uploaded: list[str]) -> None:
        message = f"{manifest['rows']:,} rows, {manifest['tokens']:,} tokens"
        if self.failed:
            message += f", {self.failed:,} without an answer"
        if self.spent:
            message += "; the budget of tokens is used up"
        self.emit("done", message)
        write_out(
            {
                "path": str(self._store.path.absolute()),
                "rows": manifest["rows"],
                "tokens": manifest["tokens"],
                "bytes": sum(shard["bytes"] for shard in manifest["shards"]),
                "failed": self.failed,
                "truncated": self._truncated,
                "complete": manifest["complete"],
                "not_uploaded": not_uploaded,
                **({} if self._outbox is None else {"url": self._outbox.url}),
            }
        )

    def tell(self, message: str) -> None:
        """Something a person should read; also from another thread."""
        self.emit("step", message)

    def _finished(self, work: Work, server: Server, answer: Answer, seconds: float) -> None:
        if server.identity:
            self._store.note_server(server.url, server.identity)
        record = record_of(work, server.url, answer, seconds, self._settings)
        self._store.add(record)
        self._done += 1
        self._truncated += answer.finish_reason == "length"
        self._tokens += answer.tokens
        self._meter.add(answer.tokens)
        if self._audit is not None:
            self._audit.add(record)
        following = work.prompt.following(answer.content)
        if following is not None and self._dispatcher is not None:
            self._dispatcher.add(following)

    def _failed(self, work: Work) -> None:
        # Later turns of a conversation cannot be asked for without this one.
        self.failed += 1 + len(work.prompt.rest)
        self.last_failure = work.reasons[-1]
        self._quarantine.add(
            work.prompt, kind=work.kind, refused=work.refused, reasons=work.reasons
        )

    async def _tick(self) -> None:
        began = time.monotonic()
        while True:
            # Slower as the run grows long: days of work must not become a file of megabytes.
            elapsed = time.monotonic() - began
            await asyncio.sleep(min(PROGRESS_SECONDS + elapsed / 120, LONGEST_WAIT_SECONDS))
            self.emit("step", self._news())

    def _news(self) -> str:
        """What happened to servers and uploads since the last line, once each."""
        assert self._dispatcher is not None
        now = time.monotonic()
        found = {
            f"{server.name} is {state}" + (f": {why}" if why else "")
            for server in self._dispatcher.servers
            if (state := server.state(now)) not in ("up", "serving")
            for why in [(server.wrong or server.last_error)[:200] if state != "slow" else ""]
        }
        if problem := self._dispatcher.list_problem:
            found.add(f"the list of servers {problem}")
        if self._outbox is not None and (late := keys.late()):
            found.add(late)
        news = "; ".join(sorted(found - self._told))
        self._told = found
        return news

    def _eta(self, rate: float) -> float | None:
        """By tokens: answers differ so much in length that counting them says little."""
        if not self._done or rate <= 0:
            return None
        left = (self._todo - self._done) * self._tokens / self._done
        return max(0.0, left / rate)

    def emit(self, kind: Kind, message: str) -> None:
        """One line of progress."""
        rate = self._meter.rate()
        metrics: dict[str, Any] = {"tok/s": round(rate, 1), "tokens": self._tokens}
        eta = self._eta(rate)
        if eta is not None and kind != "done":
            metrics["eta_s"] = round(eta)
        if self._truncated:
            metrics["truncated"] = self._truncated
        if self.failed:
            metrics["failed"] = self.failed
        if self._outbox is not None and self._outbox.waiting:
            metrics["to_upload"] = self._outbox.waiting
        if self._outbox is not None and (told := self._outbox.keys_told):
            metrics["keys"] = told
        if self._audit is not None and self._audit.judged:
            metrics["audited"] = self._audit.judged
        if self._dispatcher is not None:
            servers = list(self._dispatcher.servers)
            metrics["running"] = sum(server.running for server in servers)
            if self._dispatcher.retries:
                metrics["retries"] = self._dispatcher.retries
            if self._dispatcher.troubles:
                metrics["troubles"] = dict(Counter(self._dispatcher.troubles).most_common())
            metrics["servers"] = {server.name: server.counts() for server in servers}
        self._progress.emit(
            kind,
            done=self._before + self._done,
            total=self._total,
            unit="rows",
            message=message,
            metrics=metrics,
        )


def _cancelled_by_signals() -> Callable[[], None]:
    """A signal to stop cancels the running task; what is returned puts things back as they were."""
    task, loop, before = asyncio.current_task(), asyncio.get_running_loop(), {}
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(ValueError, RuntimeError):  # not in the main thread
            handler = signal.getsignal(number)
            loop.add_signal_handler(number, task.cancel if task else lambda: None)
            before[number] = handler

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    return restore


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}" + ("" if count == 1 else "s")


def record_of(
    work: Work, url: str, answer: Answer, seconds: float, settings: Settings
) -> dict[str, Any]:
    """One line of a shard. Its first three keys are what going on later needs."""
    prompt = work.prompt
    record: dict[str, Any] = {
        "id": prompt.id,
        "prompt_hash": f"{prompt.digest:016x}",
        "tokens": answer.tokens,
        "messages": prompt.messages,
    }
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
