"""Another boot or another machine behind a role: what of the done work it takes away."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from remote import Identity
from runbook.engine.epochs import change_of
from runbook.reasons import MOVED, REBOOTED, REPLACED
from state import HostBinding, HostEpoch, TaskState
from tests.support.workspaces import make, states

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runbook.service import Service

HERE = Identity(boot_id="b1", machine_id="m1", pid1_start="7", host_key="k1")
PROOF = {"boot_id": "b1", "machine_id": "m1", "pid1_start": "7", "host_key": "k1"}
BOX = HostBinding(role="box", kind="local", root="/r", work="/w")


def met(**other: str) -> HostEpoch:
    proof = {**PROOF, **other}
    return HostEpoch(role="box", epoch=Identity(**proof).epoch, identity=proof, at="")


@pytest.mark.parametrize(
    ("last", "change"),
    [
        (None, None),
        (met(), None),
        (met(boot_id="b0"), REBOOTED),
        (met(pid1_start="1"), REBOOTED),  # a container that was started again
        (met(machine_id="m0"), REPLACED),
        (met(host_key="k0"), REPLACED),
        (HostEpoch(role="box", epoch="old", identity={}, at=""), REPLACED),  # nothing known of it
    ],
)
def test_what_happened_to_a_machine(last: HostEpoch | None, change: str | None) -> None:
    assert change_of(last, BOX, HERE, None) == change


def test_other_folders_on_the_same_machine_have_not_what_was_made() -> None:
    assert change_of(met(), BOX, HERE, replace(BOX, work="/elsewhere")) == MOVED
    assert change_of(met(), BOX, HERE, BOX) is None


TASKS = """\
  disk:
    title: On disk
    phase: one
    step: shell
    with: {sh: "touch ${host.work}/made"}
    done_when: [{file: {path: "${host.work}/made"}}]
  memory:
    title: In memory
    phase: one
    step: shell
    with: {sh: "echo x > SHM"}
    done_when: [{file: {path: "SHM"}}]
  after:
    title: Needs both
    phase: one
    needs: [disk, memory]
    step: shell
    with: {argv: ["false"]}
"""


def pretend(service: Service, **other: str) -> None:
    """As if the role had been met on another boot, or machine, until now."""
    proof = dict(service.snapshot().epochs[-1].identity)
    before: Mapping[str, str] = {**proof, **other}
    with service.store.write() as tx:
        tx.seen_host("box", epoch=Identity(**before).epoch, identity=before)


@pytest.fixture
def copy() -> Iterator[Path]:
    """A file in memory that no other test has."""
    with tempfile.TemporaryDirectory(prefix="runbook-test-", dir="/dev/shm") as folder:
        yield Path(folder) / "copy"


def test_a_reboot_takes_memory_and_a_new_machine_everything_until_it_is_verified(
    tmp_path: Path, copy: Path
) -> None:
    with make(tmp_path, TASKS.replace("SHM", str(copy))) as service:
        service.run(only=["disk", "memory"])
        assert states(service) == {"disk": "done", "memory": "done", "after": "ready"}
        pretend(service, boot_id="another")
        service.run(only=["after"])  # meets the host before it starts anything on it
        assert states(service) == {"disk": "done", "memory": "stale", "after": "blocked"}
        assert "box was rebooted" in service.snapshot().task("memory").reason
        assert service.view().next.command == "runbook verify memory"
        # It was no real reboot: the file is there, and the check brings the task back.
        service.verify(["memory"])
        assert service.snapshot().task("memory").state is TaskState.DONE

        pretend(service, machine_id="another")
        service.probe("box")
        assert states(service)["disk"] == "stale"
        assert states(service)["memory"] == "stale"
        (tmp_path / "work" / "made").unlink()
        service.verify()
        assert states(service)["disk"] == "stale", "it does not hold: it stays so"
        assert states(service)["memory"] == "done"
