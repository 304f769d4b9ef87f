"""HTTP clients of one connection each, kept for the next request to the same server.

A pool of httpx looks at every one of its sockets for every request: with hundreds of requests under
way that is most of a client's time.
"""

from __future__ import annotations

import contextlib
import ssl
from collections import defaultdict
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx

CONNECT_S = 10.0
# Idle connections are closed by the server after 5 s; ours go first, or a request is lost.
KEEP_ALIVE_S = 3.0


class Connections:
    """As many to each server as there were requests at one time."""

    def __init__(self, *, patience: float) -> None:
        self._patience = patience
        self._free: defaultdict[str, list[httpx.AsyncClient]] = defaultdict(list)
        self._all: list[httpx.AsyncClient] = []
        self._certificates: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._all:
            await client.aclose()

    @contextlib.asynccontextmanager
    async def to(self, url: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client that nobody else uses meanwhile."""
        free = self._free[url]
        client = free.pop() if free else self._make()
        try:
            yield client
        finally:
            free.append(client)

    def _make(self) -> httpx.AsyncClient:
        import httpx

        if self._certificates is None:
            self._certificates = ssl.create_default_context()  # too slow for each of hundreds
        made = httpx.AsyncClient(
            limits=httpx.Limits(max_connections=1, keepalive_expiry=KEEP_ALIVE_S),
            timeout=httpx.Timeout(self._patience, connect=CONNECT_S),
            verify=self._certificates,
            # Servers are addressed directly; a proxy in the environment is for the outer world.
            trust_env=False,
        )
        self._all.append(made)
        return made
