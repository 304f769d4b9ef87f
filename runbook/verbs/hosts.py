"""Verbs on hosts: which machine stands behind a role, and what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote import HostKeyChanged, HostKeyUnknown
from runbook.engine.epochs import settle
from runbook.engine.hosts import bound
from runbook.errors import Exit, RunbookError
from runbook.placement import where_it_runs
from runbook.reasons import OTHER_KEY, WRONG_ANSWER
from runbook.units import show_bytes
from runbook.verbs.confirming import ConfirmVerbs
from state.transitions import RUNNING, TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from remote import Host, Identity, Shrunk
    from remote.transfer import Progress, Report
    from state import HostBinding


class HostVerbs(ConfirmVerbs):
    """Binding, probing, taking a new key, forgetting."""

    def bind(
        self, role: str, binding: HostBinding, *, accept_fingerprint: str = ""
    ) -> Mapping[str, Any]:
        """Puts a machine behind a role and records its facts; nothing changes if it is silent.

        The key that it proves to have is pinned to the role from now on.

        Args:
            accept_fingerprint: of a host key that known_hosts does not have (`SHA256:...`).

        Raises:
            RunbookError: the runbook has no such role.
            RemoteError: the machine does not answer, or its key is not trusted.
        """
        self._only_a_person("bind machines")
        self._require_free()
        self.require_role(role)
        try:
            binding, identity, facts = self._meet(binding)
        except HostKeyUnknown as error:
            if not accept_fingerprint:
                raise
            require_same_key(role, error.fingerprint, accept_fingerprint)
            binding, identity, facts = self._meet(replace(binding, host_key=error.key))
        self._take(role, binding, identity, facts)
        return facts

    def rent(
        self, role: str, *, usd_per_hour: float | None = None, ends_at: str | None = None
    ) -> HostBinding:
        """What an hour of the machine costs, and when its rental ends; what is None stays."""
        self._only_a_person("say what a machine costs")
        self._require_free()
        binding = self._bound(role)
        price = binding.usd_per_hour if usd_per_hour is None else usd_per_hour
        binding = replace(binding, usd_per_hour=price, ends_at=ends_at or binding.ends_at)
        with self._write() as tx:
            tx.bind_host(binding)
        self.write_progress()
        return binding

    def _take(
        self, role: str, binding: HostBinding, identity: Identity, facts: Mapping[str, Any]
    ) -> None:
        """Commits a binding; done tasks whose results the machine does not have turn stale."""
        snapshot = self.snapshot()
        before = next((host for host in snapshot.hosts if host.role == role), None)
        if before is not None and before.machine == binding.machine:
            price = before.usd_per_hour if binding.usd_per_hour is None else binding.usd_per_hour
            ends_at = binding.ends_at or before.ends_at
            binding = replace(binding, usd_per_hour=price, ends_at=ends_at)
        self._hosts.forget(role)
        with self._write() as tx:
            tx.bind_host(binding)
            for prefix in (OTHER_KEY, WRONG_ANSWER):
                tx.set_meta(prefix + role, "", unless="")
            settle(tx, snapshot, role, identity, facts, before=before, now=binding)
        self.write_progress()

    def _meet(self, binding: HostBinding) -> tuple[HostBinding, Identity, Mapping[str, Any]]:
        host = self._hosts.meet(binding)
        try:
            identity, facts = host.identity(), host.facts(look_at=[binding.work])
            return replace(binding, host_key=host.transport.host_key or None), identity, facts
        finally:
            host.close()

    def shown_key(self, role: str) -> HostKeyChanged | None:
        """The key that the machine shows now, beside the pinned one; None: it is the pinned one.

        Raises:
            RemoteError: the machine does not answer.
        """
        binding = self._bound(role)
        host = self._hosts.meet(binding)
        try:
            host.identity()
        except HostKeyChanged as changed:
            return changed
        finally:
            host.close()
        return None

    def repin(self, role: str, key: str) -> HostBinding:
        """Takes another key for the role: a new epoch. A person has compared its fingerprint."""
        self._only_a_person("take host keys")
        binding, identity, facts = self._meet(replace(self._bound(role), host_key=key))
        self._take(role, binding, identity, facts)
        return binding

    def forget(self, role: str) -> HostBinding:
        """Takes the machine from the role; nothing on the machine is touched.

        Raises:
            RunbookError: something of the graph runs there.
        """
        self._only_a_person("forget machines")
        self._require_free()
        binding = self._bound(role)
        snapshot = self.snapshot()
        under_way = [task for task in snapshot.tasks if task.state in RUNNING]
        live = [t.id for t in under_way if role in (t.role, where_it_runs(snapshot, t))]
        if live:
            raise RunbookError(
                f"Cannot forget `{role}`: {', '.join(live)} may run on it.",
                hint=f"Stop it first: runbook stop {live[0]}.",
                exit_code=Exit.CONFLICT,
            )
        with self._write() as tx:
            tx.unbind_host(role)
        self._hosts.forget(role)
        self.write_progress()
        return binding

    def machine(self, role: str) -> Host:
        """The machine of a role, on a connection of its own. The caller closes it."""
        return self._hosts.meet(self._bound(role))

    def _bound(self, role: str) -> HostBinding:
        self.require_role(role)
        return bound(self.snapshot(), role)

    def put(
        self, role: str, local: Path, remote: str, progress: Callable[[Progress], None]
    ) -> Report:
        """Sends a file or a tree, proved equal by hashes. Raises TransferFailed, Unreachable."""
        binding = self._bound(role)
        _require_whole(remote, binding)
        return self._hosts.of_role(self.snapshot(), role).push(local, remote, progress=progress)

    def get(
        self, role: str, remote: str, local: Path, progress: Callable[[Progress], None]
    ) -> Report:
        """Fetches a file or a tree; proved equal by its hashes."""
        binding = self._bound(role)
        _require_whole(remote, binding)
        return self._hosts.of_role(self.snapshot(), role).pull(remote, local, progress=progress)

    def clean(self, role: str, *, keep: int, older_than_s: float) -> list[Shrunk]:
        """Shrinks old jobs on a machine whose outcome is recorded here; what went.

        A rehearsal asks the machine, and touches nothing there.
        """
        self.require_role(role)
        self._require_free()
        self._compare_revision()
        snapshot = self.snapshot()
        ended = [row.id for row in snapshot.attempts if row.host == role and row.state in TERMINAL]
        host = self._hosts.of_role(snapshot, role)
        shrunk = host.collect_garbage(
            ended, keep=keep, older_than_s=older_than_s, only_tell=self.dry_run
        )
        if self.dry_run:
            self.would += [f"shrink {one.attempt}: {show_bytes(one.freed_bytes)}" for one in shrunk]
            freed = sum(one.freed_bytes for one in shrunk)
            self.would.append(f"free about {show_bytes(freed)} on {role}, of {len(shrunk)} jobs")
        return shrunk

    def probe(self, role: str) -> Mapping[str, Any]:
        """Asks the host for its facts and records them."""
        self.require_role(role)
        snapshot = self.snapshot()
        host = self._hosts.of_role(snapshot, role)
        facts = host.facts(look_at=[snapshot.host(role).work])
        identity = host.identity()
        with self._write() as tx:
            settle(tx, snapshot, role, identity, facts, before=snapshot.host(role))
        self.write_progress()
        return facts


def _require_whole(path: str, binding: HostBinding) -> None:
    if not path.startswith(("/", "~")):
        raise RunbookError(
            f"`{path}` is no whole path on {binding.role}.",
            hint=f"Write all of it, such as {binding.work}/{path}.",
            exit_code=Exit.USAGE,
        )


def require_same_key(role: str, shown: str, given: str) -> None:
    """The fingerprint that a person compared is that of the key which the machine shows."""
    if given != shown:
        raise RunbookError(
            f"{role} shows {shown}, not {given}.",
            hint="Compare it with the provider's page once more. Nothing was changed.",
            exit_code=Exit.NEEDS_AUTH,
        )
