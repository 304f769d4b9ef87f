"""Where the faults of the network happen: two machines, jobs that count their starts, a tally."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from remote import Host, HostTarget, JobSpec, JobStatus, RemoteError, Unreachable
from remote.ssh import SshTransport
from tests.support import namespaces
from tests.support.deadline import wait_for
from tests.support.link import Link
from tests.support.sshd import Sshd, running_sshd

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

DEFINITE = ("exited", "burned", "lost")


@dataclass
class Tally:
    """What came of the attempts of one fault."""

    attempts: int = 0
    double: int = 0
    """Attempts whose payload began more than once."""
    missing: int = 0
    """Attempts without a definite outcome, or with a wrong one."""
    unknown: int = 0
    """Answers that were lost, and said so."""
    outcomes: Counter[str] = field(default_factory=Counter)
    said: str = ""
    """What else was found, in a few words."""

    @property
    def sound(self) -> bool:
        return self.double == 0 and self.missing == 0


@dataclass
class Field:
    """One machine behind a link that can be cut, one with an address of its own, or None."""

    folder: Path
    chance: random.Random
    scale: int
    near: Sshd
    machine: namespaces.Machine | None
    cleanup: ExitStack
    tally: Tally = field(default_factory=Tally)
    count: int = 0
    wanted: dict[str, int] = field(default_factory=dict)

    def link(self, **how: Any) -> Link:
        made = Link(self.near.port, **how)
        self.cleanup.callback(made.close)
        return made

    def transport(self, link: Link | None = None, **how: Any) -> SshTransport:
        """A client's own connection: over a link to the near machine, else to the other one."""
        if link is not None:
            target = self._target("127.0.0.1", link.port, self.near.host_key)
            config = self.near.client_config
        else:
            assert self.machine is not None
            target = self._target(self.machine.address, namespaces.PORT, self.machine.host_key)
            config = self.machine.client_config
        made = SshTransport(target, config=config, **how)
        self.cleanup.callback(made.close)
        return made

    def _target(self, address: str, port: int, key: str) -> HostTarget:
        return HostTarget(
            kind="ssh", address=address, user=self.near.user, port=port, root="", host_key=key
        )

    def host(self, transport: SshTransport, **inject: Any) -> Host:
        near = transport.target.address == "127.0.0.1"
        root = self.folder / ("near" if near else "far")
        return Host(transport, root=str(root), workspace_id="w", inject=inject)

    def spec(self, *, holds: bool = False, code: int = 0, **more: Any) -> JobSpec:
        """A job that notes its start, waits for a word of ours if it `holds`, and ends."""
        self.count += 1
        name = f"a{self.count}"
        marks = self.folder / "marks"
        marks.mkdir(exist_ok=True)
        wait = f"until [ -e {marks}/go-{name} ]; do sleep 0.05; done; " if holds else ""
        script = f"echo x >> {marks}/{name}; echo before; {wait}echo after; exit {code}"
        self.wanted[name] = code
        self.tally.attempts += 1
        given = {"task": f"t-{name}", "generation": 1, "grace_s": 2.0}
        return JobSpec(attempt=name, argv=("sh", "-c", script), **{**given, **more})

    def release(self, spec: JobSpec) -> None:
        (self.folder / "marks" / f"go-{spec.attempt}").touch()

    def began(self, spec: JobSpec) -> int:
        path = self.folder / "marks" / spec.attempt
        return len(path.read_text().splitlines()) if path.exists() else 0

    def launch_once(self, host: Host, spec: JobSpec) -> JobStatus | None:
        """One launch; None when the answer was lost, which is counted."""
        try:
            return host.launch(spec)
        except Unreachable:
            self.tally.unknown += 1
            return None

    def launch(self, host: Host, spec: JobSpec, *, limit_s: float = 90) -> JobStatus:
        """Launch until there is an answer."""

        def answer() -> JobStatus | None:
            try:
                return host.launch(spec)
            except Unreachable:
                return None

        found = wait_for(answer, limit_s=limit_s, what=f"an answer to the launch of {spec.attempt}")
        assert found is not None
        return found

    def status(self, host: Host, spec: JobSpec, *, limit_s: float = 90) -> JobStatus:
        def answer() -> JobStatus | None:
            try:
                return host.poll([spec.attempt])[spec.attempt]
            except Unreachable:
                return None

        found = wait_for(answer, limit_s=limit_s, what=f"the state of {spec.attempt}")
        assert found is not None
        return found

    def one(self, host: Host, *, code: int = 0) -> JobStatus:
        """A whole job, undisturbed or not."""
        spec = self.spec(code=code)
        self.launch(host, spec)
        return self.settle(host, spec)

    def settle(self, host: Host, spec: JobSpec, *, limit_s: float = 90) -> JobStatus:
        """Wait for its end, and count what came of it."""
        self.release(spec)
        found: list[JobStatus] = []

        def over() -> bool:
            found[:] = [self.status(host, spec)]
            return found[0].state in DEFINITE

        try:
            wait_for(over, limit_s=limit_s, what=f"{spec.attempt} to end")
        except AssertionError:
            self.tally.missing += 1
        status = found[0]
        self.tally.outcomes[status.cls or status.state] += 1
        began = self.began(spec)
        self.tally.double += began > 1
        right = status.exit_code == self.wanted[spec.attempt] and began == 1
        if status.state == "exited" and status.cls in ("ok", "exit") and not right:
            self.tally.missing += 1
        return status


def silence(transport: SshTransport, *, timeout: float = 120) -> float:
    """Seconds until a dead link is told of."""
    began = time.monotonic()
    try:
        transport.run(["sleep", "600"], timeout=timeout)
    except RemoteError:
        return time.monotonic() - began
    raise AssertionError("a dead link answered")


@contextmanager
def prepared(folder: Path, chance: random.Random, *, scale: int, far: bool) -> Iterator[Field]:
    """A field, cleared away afterwards. `far`: with a machine in a namespace of its own."""
    with ExitStack() as cleanup:
        near = cleanup.enter_context(running_sshd(folder / "near-sshd"))
        machine = None
        if far:
            machine = namespaces.Machine(folder / "far-sshd", chance.randrange(1, 250))
            cleanup.callback(machine.remove)
            machine.make()
        yield Field(folder, chance, scale, near, machine, cleanup)
