"""The hosts of one workspace: from a role's binding to a connected `remote.Host`.

Connections are made on first use and kept. An unreachable host is left alone for a growing while,
so that many tasks on a dead box make one stream of tries, not many.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from remote import Host, HostTarget, Unreachable, open_transport
from runbook.errors import CannotStart
from state import HostBinding, Snapshot, UnknownHost

if TYPE_CHECKING:
    from collections.abc import Callable

FIRST_PAUSE_S = 2.0
LONGEST_PAUSE_S = 60.0


class LeftAlone(Unreachable):
    """The host failed a moment ago and is not asked again yet. Says nothing new about it."""


@dataclass(slots=True)
class _Breaker:
    """How long to leave a host alone after failures."""

    until: float = 0.0
    pause: float = FIRST_PAUSE_S

    def trip(self, now: float) -> None:
        self.until = now + self.pause
        self.pause = min(self.pause * 2, LONGEST_PAUSE_S)

    def reset(self) -> None:
        self.until, self.pause = 0.0, FIRST_PAUSE_S


@dataclass(slots=True)
class Hosts:
    """Hands out one `Host` per role."""

    workspace_id: str
    clock: Callable[[], float] = time.monotonic
    _open: dict[str, Host] = field(default_factory=dict)
    _breakers: dict[str, _Breaker] = field(default_factory=dict)

    def of_role(self, snapshot: Snapshot, role: str) -> Host:
        """The connected host of a role.

        Raises:
            CannotStart: no machine is bound to the role.
            LeftAlone: the last try failed and its pause is not over.
        """
        try:
            binding = snapshot.host(role)
        except UnknownHost:
            raise CannotStart(
                f"No machine is bound to the host role `{role}`.",
                hint=f"Bind one: `runbook host bind {role} local`.",
            ) from None
        _require_here(binding)
        breaker = self._breakers.setdefault(role, _Breaker())
        if self.clock() < breaker.until:
            wait = breaker.until - self.clock()
            raise LeftAlone(f"{role}: did not answer; next try in {wait:.0f} s.")
        if role not in self._open:
            self._open[role] = self.meet(binding)
        return self._open[role]

    def meet(self, binding: HostBinding) -> Host:
        """A machine that no role has yet. The caller closes it."""
        transport = open_transport(_target(binding))
        return Host(transport, root=binding.root, workspace_id=self.workspace_id)

    def forget(self, role: str) -> None:
        """Another machine plays the role from now on."""
        host = self._open.pop(role, None)
        if host is not None:
            host.close()
        self._breakers.pop(role, None)

    def failed(self, role: str) -> None:
        """A call to the host got no answer: drop the connection and pause."""
        self._breakers.setdefault(role, _Breaker()).trip(self.clock())
        host = self._open.pop(role, None)
        if host is not None:
            host.transport.close()

    def answered(self, role: str) -> None:
        """A call to the host got its answer."""
        self._breakers.setdefault(role, _Breaker()).reset()

    def close(self) -> None:
        """Closes every connection. Jobs go on."""
        for host in self._open.values():
            host.transport.close()
        self._open.clear()


def _require_here(binding: HostBinding) -> None:
    """A pulled state may name as `local` the machine of somebody else, where its jobs may run."""
    there, here = binding.facts.get("hostname"), socket.gethostname()
    if binding.kind == "local" and there and there != here:
        raise CannotStart(
            f"`{binding.role}` is the machine {there}, bound there as local; this is {here}.",
            hint=f"Reach it from here: runbook host bind {binding.role} USER@{there} "
            f"--root {binding.root} --work {binding.work}; or bind another machine.",
        )


def _target(binding: HostBinding) -> HostTarget:
    return HostTarget(
        kind=binding.kind,
        address=binding.address,
        user=binding.user,
        port=binding.port,
        root=binding.root,
        host_key=binding.host_key,
    )
