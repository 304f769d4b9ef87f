"""A host that says nothing keeps no task of another host waiting: not a start, not a log."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from remote import LocalTransport, Result
from runbook.engine.events import Problem, TaskMoved
from runbook.engine.hosts import Hosts
from runbook.engine.quiet import QuietHost
from runbook.service import Service
from state import HostBinding
from tests.support.deadline import wait_for
from tests.support.workspaces import cli, make, states

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HEAD = """\
version: 1
name: two
title: Two machines
hosts:
  slow: {title: says nothing}
  box: {title: answers}
phases: {one: One}
tasks:
"""
TASKS = """\
  silent:
    title: On the one that says nothing
    phase: one
    host: slow
    step: shell
    with: {sh: "echo from afar"}
  first:
    title: First
    phase: one
    host: box
    step: shell
    with: {sh: "echo one"}
  second:
    title: Second
    phase: one
    host: box
    needs: [first]
    step: shell
    with: {sh: "echo two"}
"""


class Gated(LocalTransport):
    """This machine; some of its requests wait until the gate is opened."""

    def __init__(self, verbs: tuple[str, ...]) -> None:
        super().__init__()
        self.verbs = verbs
        self.gate = threading.Event()
        self.waiting = 0

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        if not self.verbs or argv[-1] in self.verbs:
            self.waiting += not self.gate.is_set()
            self.gate.wait(90)
        return super().run(argv, input=input, timeout=timeout)


@pytest.mark.parametrize("verbs", [(), ("launch",), ("read",), ("read_out",)], ids=str)
def test_others_go_on(tmp_path: Path, monkeypatch, verbs: tuple[str, ...]) -> None:
    with make(tmp_path, TASKS, head=HEAD) as service:
        (box,) = service.snapshot().hosts
        service.bind("slow", HostBinding(
            role="slow", kind="local", root=f"{box.root}-2", work=f"{box.work}-2",
        ))  # fmt: skip
        gated = Gated(verbs)

        def meet(self: Hosts, binding: HostBinding) -> Any:
            transport = gated if binding.role == "slow" else LocalTransport()
            return QuietHost(
                transport, root=binding.root, workspace_id=self.workspace_id, secrets=self.secrets
            )

        monkeypatch.setattr(Hosts, "meet", meet)
        running = threading.Thread(target=run, args=(tmp_path,))
        running.start()
        try:
            wait_for(lambda: gated.waiting, limit_s=60, what="the silence")
            wait_for(
                lambda: states(service)["second"] == "done",
                limit_s=60,
                what="the other host's tasks",
            )
            assert states(service)["silent"] != "done"
        finally:
            gated.gate.set()
            running.join()
        assert set(states(service).values()) == {"done"}


def run(folder: Path) -> None:
    with Service.open(folder) as own:
        own.run()


def test_the_list_of_hosts_says_for_how_long_one_has_been_silent(tmp_path: Path) -> None:
    with make(tmp_path, TASKS, head=HEAD) as service:
        service.bind("slow", HostBinding(role="slow", kind="local", root=str(tmp_path / "slow")))
        with service.store.write() as tx:
            tx.set_unreachable("slow", True)
        since = service.snapshot().host("slow").unreachable_since
    listed = cli(tmp_path, "host", "list").stdout
    assert since is not None
    when = rf"({since[:10]} )?{since[11:16]}Z"  # with its day, once that is over
    assert re.search(rf"slow +local +silent since {when} \([0-9.]+ s\)", listed), listed
    assert "reachable" in listed


def test_a_machine_that_answers_wrongly_keeps_nobody_from_following_the_others(
    tmp_path: Path,
) -> None:
    """Its root was taken away, as a disk that is no longer mounted; then it comes back."""
    tasks = "".join(
        f"  {role}: {{title: X, phase: one, host: {role}, step: shell, with: {{sh: "
        f'"until test -e {tmp_path}/go-{role}; do sleep 0.05; done"}}}}\n'
        for role in ("box", "slow")
    )
    root, away = tmp_path / "root", tmp_path / "away"
    told: list[object] = []
    leave = threading.Event()

    def listen(event: object) -> None:
        told.append(event)
        moved = [(one.task, one.state) for one in told if isinstance(one, TaskMoved)]
        if {("box", "active"), ("slow", "active")} <= set(moved):
            leave.set()
        if isinstance(event, TaskMoved) and moved[-1] == ("box", "done"):
            root.unlink()
            away.rename(root)
            (tmp_path / "go-slow").touch()

    with make(tmp_path, tasks, head=HEAD) as service:
        there = HostBinding(role="slow", kind="local", root=str(root), work=str(tmp_path / "w"))
        service.bind("slow", there)
        service.run(stop_event=leave, listen=listen)
        root.rename(away)
        root.touch()
        (tmp_path / "go-box").touch()
        assert service.run(listen=listen).outcome == "done"
        assert states(service) == {"box": "done", "slow": "done"}
    said = [one.text for one in told if isinstance(one, Problem)]
    assert any(text.startswith("slow: its jobs cannot be looked at: ") for text in said)
