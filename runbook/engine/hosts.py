"""The hosts of one workspace: from a role's binding to a connected `remote.Host`.

Connections are made on first use and kept. An unreachable host is left alone for a growing while,
so that many tasks on a dead box make one stream of tries, not many.
"""

from __future__ import annotations

import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote import Host, HostTarget, Unreachable, open_transport
from remote.breaker import Breaker
from runbook.engine.quiet import QuietHost
from runbook.errors import CannotStart
from runbook.rented import where
from runbook.secrets import SecretBox
from state import HostBinding, Snapshot, UnknownHost

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0


class LeftAlone(Unreachable):
    """The host failed a moment ago and is not asked again yet. Says nothing new about it."""


@dataclass(slots=True)
class Hosts:
    """Hands out one `Host` per role."""

    workspace_id: str
    secrets: SecretBox = field(default_factory=SecretBox)
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, Host] = field(default_factory=dict)
    _breakers: dict[str, Breaker] = field(default_factory=dict)
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def of_role(self, snapshot: Snapshot, role: str) -> Host:
        """The connected host of a role.

        Raises:
            CannotStart: no machine is bound to the role.
            LeftAlone: the last try failed and its pause is not over.
        """
        binding = bound(snapshot, role)
        _require_here(binding)
        self.secrets.guard(snapshot)
        wait = self._breaker(role).wait_s
        if wait:
            raise LeftAlone(f"{role}: did not answer; next try in {wait:.0f} s.")
        with self._guard:
            if role not in self._open:
                self._open[role] = self.meet(binding)
            return self._open[role]

    def meet(self, binding: HostBinding) -> Host:
        """A machine, on a connection of its own. The caller closes it."""
        transport = open_transport(target_of(binding))
        return QuietHost(
            transport, root=binding.root, workspace_id=self.workspace_id, secrets=self.secrets
        )

    def forget(self, role: str) -> None:
        """Another machine plays the role from now on."""
        host = self._open.pop(role, None)
        if host is not None:
            host.close()
        self._breakers.pop(role, None)

    def failed(self, role: str) -> None:
        """A call to the host got no answer: drop the connection and pause."""
        if self._breaker(role).wait_s:
            return  # another call, lost with the same connection, said so before
        self._breaker(role).failed()
        host = self._open.pop(role, None)
        if host is not None:
            host.transport.close()

    def answered(self, role: str) -> None:
        """A call to the host got its answer."""
        self._breaker(role).answered()

    def next_try_s(self, role: str) -> float:
        """Seconds until a silent host is asked again; 0 when nothing keeps us from it."""
        return self._breaker(role).wait_s

    def _breaker(self, role: str) -> Breaker:
        if role not in self._breakers:
            self._breakers[role] = Breaker(
                first_s=FIRST_PAUSE_S, most_s=LONGEST_PAUSE_S, clock=self.clock
            )
        return self._breakers[role]

    def close(self) -> None:
        """Closes every connection. Jobs go on."""
        for host in self._open.values():
            host.transport.close()
        self._open.clear()


def bound(snapshot: Snapshot, role: str) -> HostBinding:
    """The machine behind a role.

    Raises:
        CannotStart: there is none.
    """
    try:
        return snapshot.host(role)
    except UnknownHost:
        raise CannotStart(
            f"No machine is bound to the host role `{role}`.",
            hint=f"Bind one: `runbook host bind {role} {where(snapshot, role)}`.",
        ) from None


def _require_here(binding: HostBinding) -> None:
    """A pulled state may name as `local` the machine of somebody else, where its jobs may run."""
    there, here = binding.facts.get("hostname"), socket.gethostname()
    if binding.kind == "local" and there and there != here:
        raise CannotStart(
            f"`{binding.role}` is the machine {there}, bound there as local; this is {here}.",
            hint=f"Reach it from here: runbook host bind {binding.role} USER@{there} "
            f"--root {binding.root} --work {binding.work}; or bind another machine.",
        )


def target_of(binding: HostBinding) -> HostTarget:
    return HostTarget(
        kind=binding.kind,
        address=binding.address,
        user=binding.user,
        port=binding.port,
        root=binding.root,
        host_key=binding.host_key,
        identity_file=binding.identity_file,
    )
