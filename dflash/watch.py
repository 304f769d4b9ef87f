"""What is looked at while requests run: loads, the list of servers, those that hang or are slow.

hangs     no answer for long, and two health checks in a row say no: its requests are dropped
overdue   a request that runs longer than the longest answer can take at the server's own pace
slow      several times the seconds a token of the others: drained, its requests go elsewhere,
          and after a rest it is tried again
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from typing import TYPE_CHECKING

from dflash.client import load_of
from dflash.outcomes import Trouble
from dflash.servers import SERVING

if TYPE_CHECKING:
    from dflash.connections import Connections
    from dflash.dispatch import Dispatcher
    from dflash.servers import Server

ANSWERS_TO_JUDGE = 8
OVERDUE_FACTOR = 3.0
OVERDUE_AT_LEAST_S = 60.0


class Watch:
    """Runs beside a dispatcher until it is cancelled, or raises when nobody answers."""

    def __init__(self, dispatcher: Dispatcher, http: Connections) -> None:
        self._dispatcher = dispatcher
        self._limits = dispatcher.limits
        self._http = http
        self._answering = time.monotonic()

    async def run(self) -> None:
        every = min(self._limits.look_every, self._limits.give_up_after / 4)
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(every)
                self._dispatcher.look_at_list()
                self._give_up_when_nobody_answers()
                for server in self._dispatcher.servers:
                    if server.requests and not server.probing:  # a health check may take its time
                        server.probing = True
                        group.create_task(self._look(server))
                self._drain_slow()

    def _give_up_when_nobody_answers(self) -> None:
        now = time.monotonic()
        if any(
            not server.strikes and not server.wrong and (server.listed == SERVING or server.running)
            for server in self._dispatcher.servers
        ):
            self._answering = now
        if now - self._answering > self._limits.give_up_after:
            raise self._dispatcher.nobody_answers()

    async def _look(self, server: Server) -> None:
        try:
            if self._dispatcher.settings.api == "sglang":
                await self._ask_load(server)
            self._drop_overdue(server)
            quiet = time.monotonic() - max(server.last_answer, server.probed)
            if server.requests and quiet > self._limits.quiet_before_probe:
                if not await self._alive(server):
                    server.drop(Trouble.WEDGED)
                server.probed = time.monotonic()
        finally:
            server.probing = False

    async def _ask_load(self, server: Server) -> None:
        async with self._http.to(server.url) as client:
            server.load = await load_of(client, server.url)
        if server.load is not None:
            running, waiting = server.load
            server.window.load(running=running, waiting=waiting, ours=server.running)
            self._dispatcher.wake()

    async def _alive(self, server: Server) -> bool:
        """Two refusals in a row: under long prefill a single health check fails falsely."""
        import httpx

        for _ in range(2):
            with contextlib.suppress(httpx.TransportError):
                async with self._http.to(server.url) as client:
                    response = await client.get(
                        f"{server.url}/health", timeout=self._limits.probe_timeout
                    )
                if response.status_code != 503:
                    return True
        return False

    def _drop_overdue(self, server: Server) -> None:
        longest = self._dispatcher.settings.sampling.get("max_tokens")
        if longest is not None and server.paced >= ANSWERS_TO_JUDGE:
            allowed = OVERDUE_AT_LEAST_S + OVERDUE_FACTOR * server.pace * longest
            server.drop(Trouble.OVERDUE, sent_before=time.monotonic() - allowed)

    def _drain_slow(self) -> None:
        now = time.monotonic()
        judged = [
            server
            for server in self._dispatcher.servers
            if server.paced >= ANSWERS_TO_JUDGE and server.in_use(now)
        ]
        for server in judged:
            others = [one.pace for one in judged if one is not server]
            if others and server.pace > self._limits.slow_factor * statistics.median(others):
                server.set_aside(now + self._limits.slow_rest)
                break  # one at a time: what the others can do is different now
