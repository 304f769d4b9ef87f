"""Many prompts over a few servers: a window per server that adapts, all filled from one queue.

A server that is slow takes less, one that is gone takes nothing, and the long tail of thinking
lengths leaves nobody idle. A prompt that failed goes to another server if there is one. A server
that did not answer is left alone, longer each time, and asked who it is before it gets one request,
and after an answer its window back. What each class of trouble costs stands in `outcomes`.

Nothing here knows how answers are stored; the caller's `finished` and `failed` are called one at a
time, in the order of completion.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dflash.client import complete, healthy, identify, refuse_another
from dflash.errors import DflashError
from dflash.outcomes import Refused, ServerWrong, Unavailable
from dflash.servers import SERVING, Request, Server
from dflash.watch import Watch
from dflash.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dflash.answers import Answer
    from dflash.client import Settings
    from dflash.connections import Connections
    from dflash.prompts import Prompt
    from dflash.servers import ServerList

REFUSALS_IN_A_ROW = 20  # with nothing ever answered: the request is at fault, not the prompts
LOOKED_AT = 64  # of those that failed before; more than that wait for the same thing
IDLE_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Patience, in attempts, tokens and seconds."""

    concurrency: int = 256  # the widest window of a server
    first_window: int = 16
    attempts: int = 5  # of one prompt that reached a server
    tokens: int | None = None  # none is begun after so many
    first_pause: float = 0.5
    longest_pause: float = 30.0
    give_up_after: float = 600.0  # with no server answering
    look_every: float = 2.0  # at loads and at the list of servers
    quiet_before_probe: float = 120.0  # a server with work and no answer for so long is asked
    probe_timeout: float = 40.0  # SGLang's own health check takes 20 s to say no
    slow_factor: float = 4.0  # so many times the others' seconds a token is too slow
    slow_rest: float = 300.0


@dataclass(slots=True, kw_only=True, eq=False)
class Work:
    """A prompt on its way, with what happened to it so far."""

    prompt: Prompt
    attempts: int = 0
    ready_at: float = 0.0
    avoid: str | None = None
    reasons: list[str] = field(default_factory=list)
    kind: str = ""  # of the last failure
    refused: bool = False  # and it is for good


class Dispatcher:
    """Runs every prompt to an answer or a failure. `run` returns when none is left."""

    def __init__(
        self,
        servers: ServerList,
        *,
        settings: Settings,
        limits: Limits,
        run_id: str,
        finished: Callable[[Work, Server, Answer, float], None],
        failed: Callable[[Work], None],
    ) -> None:
        self.servers: list[Server] = []
        self.retries = 0
        self.troubles: Counter[str] = Counter()
        self.tokens = 0
        self.limits = limits
        self.settings = settings
        self._list = servers
        self._run_id = run_id
        self._finished = finished
        self._failed = failed
        self._again: collections.deque[Work] = collections.deque()
        self._prompts: Iterator[Prompt] = iter(())
        self._next: Prompt | None = None
        self._answered = False
        self._refusals = 0
        self._wake = asyncio.Event()
        self.follow_list()

    @property
    def spent(self) -> bool:
        """Whether the budget of tokens is used up."""
        return self.limits.tokens is not None and self.tokens >= self.limits.tokens

    @property
    def list_problem(self) -> str:
        """Why the list of servers is not followed any more."""
        return self._list.problem

    async def run(self, http: Connections, prompts: Iterator[Prompt]) -> None:
        self._prompts = prompts
        self._next = next(prompts, None)
        try:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(Watch(self, http).run())
                await self._pump(http, group)
                watch.cancel()
        except BaseExceptionGroup as group_error:
            raise _first(group_error) from group_error

    def add(self, prompt: Prompt) -> None:
        """One more, to be begun before the others."""
        self._again.appendleft(Work(prompt=prompt))

    def follow_list(self) -> None:
        """Take over what the list of servers says now."""
        known = {server.url: server for server in self.servers}
        for url in self._list.states:
            if url not in known:
                limits = self.limits
                window = Window(
                    limit=min(limits.first_window, limits.concurrency), ceiling=limits.concurrency
                )
                self.servers.append(Server(url=url, window=window))
        for server in self.servers:
            before, server.listed = server.listed, self._list.states.get(server.url, "gone")
            if before != SERVING and server.listed == SERVING:
                # It may be another process by now: who it is comes first, its speed is unknown.
                server.identity, server.rest_until, server.strikes = None, 0.0, 0
                server.window.forget()
        self.wake()

    def look_at_list(self) -> None:
        if self._list.look():
            self.follow_list()

    def wake(self) -> None:
        self._wake.set()

    # -- Handing out ------------------------------------------------------------------------------

    async def _pump(self, http: Connections, group: asyncio.TaskGroup) -> None:
        while True:
            self._wake.clear()
            self._fill(http, group)
            if not self._left() and not any(server.running for server in self.servers):
                return
            # Not wait_for: before 3.12 it can lose a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._wake.wait()

    def _left(self) -> bool:
        return not self.spent and (bool(self._again) or self._next is not None)

    def _fill(self, http: Connections, group: asyncio.TaskGroup) -> None:
        """One request at a time to the server with the most room in its window."""
        now = time.monotonic()
        open_ = {server for server in self.servers if server.room(now)}
        while open_ and self._left():
            server = min(open_, key=lambda one: one.running / one.window.limit)
            work = self._pick(server, now)
            if work is None:
                open_.remove(server)
                continue
            server.running += 1
            group.create_task(self._attempt(http, server, work))
            if not server.room(now):
                open_.remove(server)

    def _pick(self, server: Server, now: float) -> Work | None:
        others = any(one is not server and one.room(now) for one in self.servers)
        for position in range(min(len(self._again), LOOKED_AT)):
            work = self._again[position]
            if work.ready_at <= now and (work.avoid != server.url or not others):
                del self._again[position]
                return work
        if self._next is None:
            return None
        work = Work(prompt=self._next)
        self._next = next(self._prompts, None)
        return work

    def _pause(self) -> float:
        """Until the next rest ends; all else sets the event."""
        now = time.monotonic()
        ends = [server.rest_until - now for server in self.servers]
        ends += [
            work.ready_at - now for work, _ in zip(self._again, range(LOOKED_AT), strict=False)
        ]
        return min([IDLE_S, *(end + 0.005 for end in ends if end > 0)])

    # -- One attempt ------------------------------------------------------------------------------

    async def _attempt(self, http: Connections, server: Server, work: Work) -> None:
        started = time.monotonic()
        rid = f"{work.prompt.id}-{self._run_id}-{len(work.reasons)}"
        try:
            await self._meet(http, server)
            answer = await self._ask(http, server, work, rid)
        except Unavailable as error:
            self._unavailable(server, work, error, started)
        except Refused as error:
            self._refused(server, work, error)
        except ServerWrong as error:
            self._wrong(server, work, error)
        else:
            self._answer(server, work, answer, started)
        finally:
            server.running -= 1
            self.wake()

    async def _meet(self, http: Connections, server: Server) -> None:
        """Who it is, before its first request and after each outage."""
        if server.identity is not None and not server.strikes and not server.wrong:
            return
        async with http.to(server.url) as client:
            if server.strikes:
                await healthy(client, server.url)
            found = await identify(client, server.url, self.settings)
        if server.identity is not None:
            refuse_another(server.url, server.identity, found)
            server.window.forget()
        server.identity, server.wrong, server.strikes = found, "", 0
        self.wake()

    async def _ask(self, http: Connections, server: Server, work: Work, rid: str) -> Answer:
        """A task of its own, so that the watch can drop the requests of a wedged server."""
        if not server.requests:
            server.last_answer = time.monotonic()
        request = asyncio.ensure_future(self._complete(http, server, work, rid))
        about = server.requests[request] = Request(sent=time.monotonic())
        try:
            return await request
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if about.dropped is None or (current is not None and current.cancelling()):
                request.cancel()
                await asyncio.wait([request])
                raise
            raise Unavailable(about.dropped, f"dropped here: {about.dropped}") from None
        finally:
            del server.requests[request]

    async def _complete(self, http: Connections, server: Server, work: Work, rid: str) -> Answer:
        async with http.to(server.url) as client:
            return await complete(client, server.url, work.prompt, self.settings, rid=rid)

    def _answer(self, server: Server, work: Work, answer: Answer, started: float) -> None:
        now = time.monotonic()
        full = server.running >= server.window.limit
        server.note_answer(answer.tokens, now - started)
        server.window.answered(tokens=answer.tokens, now=now, full=full)
        self._answered = True
        self.tokens += answer.tokens
        self._finished(work, server, answer, now - started)

    def _unavailable(self, server: Server, work: Work, error: Unavailable, started: float) -> None:
        now, policy = time.monotonic(), error.policy
        self.troubles[error.trouble] += 1
        server.troubles[error.trouble] += 1
        server.last_error = str(error)
        rest, pause = policy.rest, error.pause
        if policy.shrink:
            server.window.overloaded(sent=started, now=now)
            # Alone there and turned away all the same: it is not its queue that is full.
            rest, pause = server.running <= 1, max(pause, self._pause_of(1))
        if rest and now >= server.rest_until:
            # One strike for each outage, not for each request in it.
            server.strikes += 1
            pause = max(pause, self._pause_of(server.strikes))
        server.rest_until = max(server.rest_until, now + pause)
        if not rest:
            server.last_answer = now
        work.reasons.append(f"{server.name}: {error}")
        work.kind, work.avoid = str(error.trouble), server.url
        work.attempts += policy.attempt
        if work.attempts >= self.limits.attempts:
            self._failed(work)
            return
        self.retries += 1
        if policy.attempt:
            # To the end and not at once: five attempts within a second of trouble prove nothing.
            work.ready_at = now + self._pause_of(work.attempts + 1)
            self._again.append(work)
        else:
            self._again.appendleft(work)

    def _pause_of(self, times: int) -> float:
        """Doubled each time, and not for all at the same moment."""
        longest = self.limits.first_pause * 2 ** min(times - 1, 16)
        return min(longest, self.limits.longest_pause) * random.uniform(0.75, 1.25)

    def _refused(self, server: Server, work: Work, error: Refused) -> None:
        server.strikes, server.last_answer = 0, time.monotonic()
        work.reasons.append(f"{server.name}: {error}")
        work.kind, work.refused = error.kind, True
        self.troubles[error.kind] += 1
        self._refusals += 1
        if not self._answered and self._refusals >= REFUSALS_IN_A_ROW:
            raise ServerWrong(
                f"each of the first {self._refusals} prompts was refused, the last with {error}",
                "Look at the options (--max-tokens, --thinking, --api) before the prompts.",
            )
        self._failed(work)

    def _wrong(self, server: Server, work: Work, error: ServerWrong) -> None:
        """At the start the command line is wrong; later that server is, and the others go on."""
        server.wrong = error.message
        self.troubles["another_server"] += 1
        others = [one for one in self.servers if one is not server and one.listed == SERVING]
        if not self._answered or all(one.wrong for one in others):
            raise error
        server.rest_until = time.monotonic() + self.limits.longest_pause
        work.reasons.append(f"{server.name}: {error.message}")
        self._again.appendleft(work)

    def nobody_answers(self) -> DflashError:
        """For a run that cannot go on."""
        words = "; ".join(
            f"{server.name}: {server.wrong or server.last_error or server.listed}"
            for server in self.servers
        )
        return DflashError(
            f"no server answered for {self.limits.give_up_after:.0f} s ({words})",
            "Start the servers and run the same command again: finished rows are kept.",
        )


def _first(group: BaseExceptionGroup) -> BaseException:
    """The one error worth telling out of a group of tasks."""
    for error in group.exceptions:
        return _first(error) if isinstance(error, BaseExceptionGroup) else error
    return group
