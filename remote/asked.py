"""Asking a machine: a verb is one round trip to our program there; refusals are told apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from remote.errors import CommandFailed, RemoteError, StaleGeneration, Unreachable
from remote.model import Identity
from remote.program import ROUND_TRIP_S, Program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from remote.transport import Transport


class Asked:
    """One workspace on one machine. Holds no state about jobs: it asks, every time."""

    def __init__(
        self,
        transport: Transport,
        *,
        root: str,
        workspace_id: str,
        inject: Mapping[str, Any] | None = None,
    ) -> None:
        self.transport = transport
        self.root = root
        self.workspace_id = workspace_id
        self.last_identity: Identity | None = None
        # inject: faults, for tests; see supervisor.INJECT
        self._program = Program(root=root, workspace_id=workspace_id, inject=inject or {})

    @property
    def label(self) -> str:
        return self.transport.label

    def close(self) -> None:
        self.transport.close()

    def _verb(
        self,
        verb: str,
        body: Mapping[str, Any],
        *,
        timeout: float = ROUND_TRIP_S,
        refusals: bool = False,
        over: Transport | None = None,
    ) -> dict[str, Any]:
        try:
            answer = self._program.ask(verb, body, over=over or self.transport, timeout=timeout)
        except CommandFailed as failed:
            if verb == "launch":  # it may have died after the start
                raise Unreachable(failed.message, hint="ask for the attempt's state") from failed
            raise
        if "identity" in answer:
            self.last_identity = Identity(host_key=self.transport.host_key, **answer["identity"])
        if not answer["ok"] and not refusals:
            if answer["error"] == "stale_generation":
                raise StaleGeneration(f"{self.label} refuses to {verb}: {answer['message']}")
            raise RemoteError(f"{self.label} cannot {verb}: {answer['message']}")
        return answer
