"""One live holder; the kernel tells of its death, the token of its replacement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from state import Lease, LeaseHeld, LeaseLost, open_store
from tests.state import processes
from tests.state.builders import Clock

if TYPE_CHECKING:
    from pathlib import Path

    from state import Store


def test_tokens_only_grow(store: Store) -> None:
    tokens = []
    for _ in range(3):
        lease = store.acquire("run", "me")
        tokens.append(lease.token)
        store.release(lease)
    assert tokens == [1, 2, 3]
    assert store.snapshot().leases == ()


def test_a_held_lease_names_its_holder(store: Store, db: Path) -> None:
    lease = store.acquire("run", "alice on laptop")
    with open_store(db, actor="bob") as other:
        assert other.is_live("run")
        assert other.snapshot().leases == (lease,)
        with pytest.raises(LeaseHeld, match="alice on laptop since 2026-03-01T12:00"):
            other.acquire("run", "bob")
        assert other.acquire("host/gpu 1", "bob").token == 1
        store.release(lease)
        assert other.acquire("run", "bob").token == 2
        assert not other.is_live("nothing")


def test_asking_whether_somebody_lives_disturbs_nobody(store: Store, db: Path) -> None:
    with open_store(db, actor="asker") as asker:
        for _ in range(20):
            assert not asker.is_live("run")
            lease = store.acquire("run", "me")
            assert asker.is_live("run")
            store.release(lease)


def test_a_killed_holder_is_replaced_at_once_and_cannot_write(store: Store, db: Path) -> None:
    child = processes.start("hold_lease", db, "doomed")
    try:
        assert child.stdout is not None
        token, acquired_at = child.stdout.readline().split()
        old = Lease(resource="run", holder="doomed", token=int(token), acquired_at=acquired_at)
        with pytest.raises(LeaseHeld, match="doomed"):
            store.acquire("run", "heir")
        with store.write(lease=old):  # as the child itself could
            pass
        child.send_signal(signal.SIGKILL)
        child.wait()
    finally:
        processes.end(child)
    assert not store.is_live("run")
    assert store.snapshot().leases == (old,)  # not yet known to be over
    lease = store.acquire("run", "heir")
    assert lease.token == old.token + 1
    assert store.events()[-1].payload["taken_over_from"] == "doomed"
    with pytest.raises(LeaseLost) as caught, store.write(lease=old) as tx:
        tx.add_note("from the grave")
    assert caught.value.found == lease.token
    assert store.snapshot().notes == ()


def test_a_suspended_holder_is_not_dead(store: Store, db: Path) -> None:
    child = processes.start("hold_lease", db, "sleeper")
    try:
        assert child.stdout is not None
        child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(LeaseHeld):
            store.acquire("run", "impatient")
    finally:
        processes.end(child)


def test_a_released_lease_writes_no_more(store: Store) -> None:
    lease = store.acquire("run", "me")
    store.release(lease)
    with pytest.raises(LeaseLost, match="was released"), store.write(lease=lease):
        pass
    revision = store.revision()
    store.release(lease)
    assert store.revision() == revision


def test_a_late_release_does_not_free_the_next_holder(store: Store, db: Path) -> None:
    first = open_store(db, actor="first", clock=Clock())
    old = first.acquire("run", "first")
    first.close()  # the kernel lock goes, as at its death; the row stays
    new = store.acquire("run", "second")
    with open_store(db, actor="first") as late:
        late.release(old)
    assert store.snapshot().leases == (new,)
    assert store.is_live("run")


def test_commands_started_by_the_holder_do_not_keep_its_lease(store: Store, db: Path) -> None:
    holder = open_store(db, actor="holder")
    holder.acquire("run", "holder")
    command = subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False
    )
    try:
        holder.close()
        assert store.acquire("run", "next").token == 2
    finally:
        command.kill()
        command.communicate()
