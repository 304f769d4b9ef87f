"""Many prompts over a few servers: a bounded window per server, all pulling from one queue.

A server that is slow takes less, one that is gone takes nothing, and the long tail of thinking
lengths leaves nobody idle. A prompt that failed goes to another server if there is one. Between
requests a server that did not answer is left alone, longer each time, and tried by one request
only before it gets its window back.

Nothing here knows how answers are stored; the caller's `finished` and `failed` are called one at a
time, in the order of completion.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash.client import Answer, Refused, ServerWrong, Settings, Unavailable, complete, identify
from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import httpx

    from dflash.prompts import Prompt

REFUSALS_IN_A_ROW = 20  # with nothing ever answered: the request is at fault, not the prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Patience, in attempts and seconds."""

    concurrency: int = 16
    attempts: int = 5  # of one prompt that reached a server
    first_pause: float = 0.5
    longest_pause: float = 30.0
    give_up_after: float = 600.0  # with no server answering
    quiet_before_probe: float = 120.0  # a server with work and no answer for so long is asked
    probe_timeout: float = 40.0  # SGLang's own health check takes 20 s to say no


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """A prompt on its way, with what happened to it so far."""

    prompt: Prompt
    attempts: int = 0
    ready_at: float = 0.0
    avoid: str | None = None
    reasons: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class Server:
    """What is known of one server in this run."""

    url: str
    running: int = 0
    done: int = 0
    tokens: int = 0
    errors: int = 0
    strikes: int = 0  # failures since the last answer
    rest_until: float = 0.0
    prober: Work | None = None  # the one request that may go out while `strikes` stand
    identity: dict[str, Any] | None = None
    last_answer: float = field(default_factory=time.monotonic)
    requests: set[asyncio.Task[Answer]] = field(default_factory=set)
    last_error: str = ""

    @property
    def name(self) -> str:
        return self.url.split("://", 1)[-1]

    def counts(self) -> dict[str, Any]:
        row: dict[str, Any] = {"done": self.done, "running": self.running, "errors": self.errors}
        row["state"] = "down" if self.strikes > 1 else "up"
        if self.strikes > 1:
            row["error"] = self.last_error[:200]
        return row


class Dispatcher:
    """Runs every prompt to an answer or a failure. `run` returns when none is left."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        settings: Settings,
        limits: Limits,
        run_id: str,
        finished: Callable[[Work, Server, Answer, float], None],
        failed: Callable[[Work], None],
    ) -> None:
        self.servers = [Server(url=url.rstrip("/")) for url in urls]
        self.retries = 0
        self._settings = settings
        self._limits = limits
        self._run_id = run_id
        self._finished = finished
        self._failed = failed
        self._queue: collections.deque[Work] = collections.deque()
        self._open = 0  # prompts neither answered nor failed
        self._answered = False
        self._refusals = 0
        self._changed = asyncio.Condition()

    async def run(self, http: httpx.AsyncClient, prompts: Sequence[Prompt]) -> None:
        self._queue.extend(Work(prompt=prompt) for prompt in prompts)
        self._open = len(prompts)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(http))
                workers = [
                    group.create_task(self._pull(http, server))
                    for server in self.servers
                    for _ in range(self._limits.concurrency)
                ]
                await asyncio.wait(workers)
                watch.cancel()
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from group_error

    async def _pull(self, http: httpx.AsyncClient, server: Server) -> None:
        """One slot of one server's window."""
        while (work := await self._take(server)) is not None:
            try:
                await self._attempt(http, server, work)
            finally:
                server.running -= 1
                await self._let_others_in(server, work)

    async def _let_others_in(self, server: Server, work: Work) -> None:
        if server.prober is work:
            server.prober = None
        async with self._changed:
            self._changed.notify_all()

    async def _take(self, server: Server) -> Work | None:
        async with self._changed:
            while self._open:
                work = self._choose(server)
                if work is not None:
                    server.running += 1
                    server.prober = work if server.strikes else None
                    return work
                # The timeout is for a rest that ends; everything else notifies.
                rest = server.rest_until - time.monotonic()
                pause = min(1.0, rest + 0.01) if rest > 0 else 1.0
                # Not wait_for: before 3.12 it can lose a cancellation that comes with a notify.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
        return None

    def _choose(self, server: Server) -> Work | None:
        now = time.monotonic()
        if server.prober is not None or now < server.rest_until:
            return None
        others_up = any(other.strikes == 0 for other in self.servers if other is not server)
        for position, work in enumerate(self._queue):
            if work.ready_at <= now and (work.avoid != server.url or not others_up):
                del self._queue[position]
                return work
            if position > 64:  # all of them just failed; their time or another server will come
                break
        return None

    async def _attempt(self, http: httpx.AsyncClient, server: Server, work: Work) -> None:
        started = time.monotonic()
        rid = f"{work.prompt.id}-{self._run_id}-{len(work.reasons)}"
        try:
            if server.identity is None or server.strikes:
                server.identity = await identify(http, server.url, self._settings)
                await self._let_others_in(server, work)  # it is back; do not wait for an answer
            answer = await self._ask(http, server, work, rid)
        except Unavailable as error:
            self._unavailable(server, work, error)
        except Refused as error:
            self._refused(server, work, error)
        else:
            server.strikes, server.last_answer = 0, time.monotonic()
            server.done += 1
            server.tokens += answer.tokens
            self._answered = True
            self._finished(work, server, answer, time.monotonic() - started)
            self._open -= 1

    async def _ask(self, http: httpx.AsyncClient, server: Server, work: Work, rid: str) -> Answer:
        """A task of its own, so that the watch can drop the requests of a wedged server."""
        if not server.requests:
            server.last_answer = time.monotonic()
        request = asyncio.ensure_future(
            complete(http, server.url, work.prompt, self._settings, rid=rid)
        )
        server.requests.add(request)
        try:
            return await request
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                request.cancel()
                await asyncio.wait([request])
                raise
            raise Unavailable("dropped: the server is wedged", reached=True) from None
        finally:
            server.requests.discard(request)

    def _unavailable(self, server: Server, work: Work, error: Unavailable) -> None:
        server.errors += 1
        server.last_error = str(error)
        if error.pause:
            now = time.monotonic()
            if now >= server.rest_until:  # one strike per outage, not one per request in it
                server.strikes += 1
                longest = self._limits.first_pause * 2 ** min(server.strikes - 1, 16)
                pause = min(longest, self._limits.longest_pause)
                server.rest_until = now + pause * random.uniform(0.75, 1.25)
        else:
            server.last_answer = time.monotonic()
        work.reasons.append(f"{server.name}: {error}")
        work.attempts += error.reached
        work.avoid = server.url
        if work.attempts >= self._limits.attempts:
            self._give_up(work)
        elif error.reached:
            # To the end and not at once: five attempts within a second of trouble prove nothing.
            pause = min(self._limits.first_pause * 2**work.attempts, self._limits.longest_pause)
            work.ready_at = time.monotonic() + pause * random.uniform(0.5, 1.0)
            self.retries += 1
            self._queue.append(work)
        else:
            self.retries += 1
            self._queue.appendleft(work)

    def _refused(self, server: Server, work: Work, error: Refused) -> None:
        server.strikes, server.last_answer = 0, time.monotonic()
        work.reasons.append(f"{server.name}: {error}")
        self._refusals += 1
        if not self._answered and self._refusals >= REFUSALS_IN_A_ROW:
            raise ServerWrong(
                f"each of the first {self._refusals} prompts was refused, the last with {error}",
                "Look at the options (--max-tokens, --thinking, --api) before the prompts.",
            )
        self._give_up(work)

    def _give_up(self, work: Work) -> None:
        self._failed(work)
        self._open -= 1

    async def _watch(self, http: httpx.AsyncClient) -> None:
        """Ends the run when nobody answers, and asks after servers that have gone quiet."""
        quiet_since = time.monotonic()
        probed: dict[str, float] = {}
        while True:
            await asyncio.sleep(min(1.0, self._limits.give_up_after / 4))
            now = time.monotonic()
            if any(server.strikes == 0 for server in self.servers):
                quiet_since = now
            if now - quiet_since > self._limits.give_up_after:
                raise self._nobody_answers()
            for server in self.servers:
                quiet = now - max(server.last_answer, probed.get(server.url, 0.0))
                if server.requests and quiet > self._limits.quiet_before_probe:
                    if not await self._alive(http, server):
                        for request in list(server.requests):
                            request.cancel()
                    probed[server.url] = time.monotonic()

    async def _alive(self, http: httpx.AsyncClient, server: Server) -> bool:
        """Two refusals in a row: under long prefill a single health check fails falsely."""
        import httpx

        for _ in range(2):
            with contextlib.suppress(httpx.TransportError):
                response = await http.get(
                    f"{server.url}/health", timeout=self._limits.probe_timeout
                )
                if response.status_code != 503:
                    return True
        return False

    def _nobody_answers(self) -> DflashError:
        words = "; ".join(f"{server.name}: {server.last_error}" for server in self.servers)
        return DflashError(
            f"no server answered for {self._limits.give_up_after:.0f} s ({words})",
            "Start the servers and run the same command again: finished rows are kept.",
        )


def _first(group: BaseExceptionGroup) -> BaseException:
    """The one error worth telling out of a group of tasks."""
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return group
