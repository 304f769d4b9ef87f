"""Prompts completed on two machines behind real sshds: one is cut off, the other loses its power.

Each has servers, a share of the prompts and folders of its own; what they make goes to one store.
At the end every record is there exactly once. The servers are stand-ins; in the soak they are real
SGLang on a CPU, with a toy model.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from dflash.completions import read_records, shard_paths
from remote.program import Program
from remote.ssh import SshTransport
from runbook.engine import hosts
from runbook.engine.events import Progressed, TaskMoved
from runbook.engine.quiet import QuietHost
from runbook.plan import load_text
from runbook.service import Service
from state import HostBinding
from tests.support.deadline import wait_for
from tests.support.ports import free_ports
from tests.support.s3 import s3_keys, s3_server
from tests.support.sglang_server import serve_python, session_members
from tests.support.sshd import Sshd, running_sshd
from tests.support.toy_model import make_toy_model
from tests.support.workspaces import states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remote import HostTarget
    from runbook.engine.events import Event

__all__ = ["s3_keys", "s3_server"]  # fixtures

ROOT = Path(__file__).parent.parent.parent
WAITED_FOR = ("generate@right", "done")
LEFT, RIGHT = "left", "right"
SERVE = """\
  serve-HOST:
    for_each: {hosts: [HOST], port: PORTS}
    title: Server on ${each.port}
    phase: one
    step: serve
    with:
SERVER
      served_name: toy
      port: ${each.port}"""
RUNBOOK = """\
version: 1
name: two
title: Two machines, one set
params: {endpoint: null, prompts: null}
hosts: {left: {group: makers}, right: {group: makers}, desk: {}}
phases: {one: One}
defaults: {retry: {max: 3, on: [lost_reboot, lost_supervisor_died, exit, signal]}}
tasks:
  share:
    for_each: {hosts: makers}
    title: Prompts of ${each.host}
    phase: one
    step: shell
    with:
      sh: >-
        awk 'NR % ${each.count} == ${each.index}' ${param.prompts} > ${host.work}/share.jsonl
SERVERS
  generate:
    for_each: {hosts: makers}
    title: Complete them
    phase: one
    needs: ["share@${each.host}", "serve-${each.host}"]
    step: generate
    with:
      venv: VENV
      prompts: ${host.work}/share.jsonl
      servers: ["${task.serve-${each.host}.out.url}"]
      model: toy
      api: API
      out: ${host.work}/completions
      max_tokens: 64
      concurrency: 2
      shard_rows: 10
      audit_after: 0
      upload: s3://bucket/completions/${each.host}
      endpoint: ${param.endpoint}
      region: us-east-1
    done_when:
      - command:
          argv:
            - sh
            - -c
            - test $(cat "$0"/shard-*.jsonl | wc -l) -eq $(wc -l < "$1")
            - ${host.work}/completions
            - ${host.work}/share.jsonl
  stop:
    for_each: {hosts: makers}
    title: Stop the servers
    phase: one
    needs: [{task: "generate@${each.host}", condition: any}]
    step: stop
    with: {tasks: ["serve-${each.host}"]}
  gather:
    for_each: {box: makers}
    title: What ${each.box} made
    phase: one
    host: desk
    needs: ["generate@${each.box}"]
    step: download
    with:
      venv: VENV
      url: s3://bucket/completions/${each.box}
      endpoint: ${param.endpoint}
      region: us-east-1
      out: ${host.work}/completions/${each.box}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Servers of one kind, and as much work as keeps them busy while machines fall out."""

    args: str
    api: str
    prompts: int
    each: int
    """Servers a machine."""


def stand_in(_: Path) -> Engine:
    program = f"{ROOT}/tests/dflash/fake_server.py"
    args = (
        "      engine: command\n"
        f"      command: [{sys.executable}, {program}, 'port-{{port}}', --port,\n"
        '        "{port}", --api, openai, --say, thought, --delay, "1.0"]\n'
        "      device: cpu\n"
        "      model: /none"
    )
    return Engine(args=args, api="openai", prompts=80, each=2)


def sglang(folder: Path) -> Engine:
    """Two at a time, as many as the cores."""
    args = (
        f"      venv: {serve_python().parent.parent}\n"
        "      device: cpu\n"
        "      dtype: float32\n"
        "      reasoning_parser: qwen3\n"
        f"      model: {make_toy_model(folder / 'toy').path}"
    )
    return Engine(args=args, api="sglang", prompts=1200, each=1)


ENGINES = [
    pytest.param(stand_in, marks=pytest.mark.timeout(300)),
    pytest.param(
        sglang,
        marks=[
            pytest.mark.timeout(3600),
            pytest.mark.skipif("RUNBOOK_SOAK" not in os.environ, reason="make soak: real SGLang"),
        ],
    ),
]


@dataclass
class Machine:
    """An sshd, with folders and a boot of its own."""

    name: str
    folder: Path
    sshd: Sshd
    boots: int = 0

    def boot(self) -> None:
        """Another boot id, and nothing of before runs."""
        self.boots += 1
        facts = {
            "proc/sys/kernel/random/boot_id": f"{self.name}-boot-{self.boots}",
            "etc/machine-id": self.name,
        }
        for name, text in facts.items():
            path = self.folder / "facts" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")

    def lose_power(self) -> None:
        """Everything that was started below its folder is gone at once, and it boots anew."""
        self.sshd.stop()
        wait_for(lambda: not self._killed(), what="everything to be gone")
        self.boot()
        self.sshd.start()

    def _killed(self) -> list[int]:
        found = []
        mark = str(self.folder).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if mark in (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes():
                        # SGLang's own children write over both.
                        found += [int(entry.name), *session_members(os.getsid(int(entry.name)))]
        for pid in set(found) - set(session_members(os.getsid(0))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def binding(self) -> HostBinding:
        return HostBinding(
            role=self.name, kind="ssh", address="127.0.0.1", user=self.sshd.user,
            port=self.sshd.port, host_key=self.sshd.host_key, root=str(self.folder / "root"),
            work=str(self.folder / "work"),
        )  # fmt: skip


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Machine]]:
    made: dict[str, Machine] = {}
    with ExitStack() as stack:
        for name in (LEFT, RIGHT, "desk"):
            folder = tmp_path / name
            sshd = stack.enter_context(running_sshd(folder / "sshd"))
            made[name] = Machine(name=name, folder=folder, sshd=sshd)
            made[name].boot()
            stack.callback(made[name]._killed)
        configs = {machine.sshd.port: machine.sshd.client_config for machine in made.values()}

        def open_transport(target: HostTarget) -> SshTransport:
            return SshTransport(target, config=configs[target.port])

        monkeypatch.setattr(hosts, "open_transport", open_transport)
        monkeypatch.setattr(hosts, "QuietHost", Elsewhere)
        yield made


class Elsewhere(QuietHost):
    """A host that has a boot and resources of its own, beside its folder of jobs."""

    def __init__(self, *args: Any, root: str, workspace_id: str, **more: Any) -> None:
        super().__init__(*args, root=root, workspace_id=workspace_id, **more)
        beside = Path(root).parent
        own = {"facts_root": str(beside / "facts"), "machine_root": str(beside / "machine")}
        self._program = Program(root=root, workspace_id=workspace_id, inject=own)


def runbook_text(engine: Engine) -> str:
    ports = free_ports(2 * engine.each)
    servers = (
        SERVE.replace("HOST", name).replace("PORTS", str(own)).replace("SERVER", engine.args)
        for name, own in ((LEFT, ports[: engine.each]), (RIGHT, ports[engine.each :]))
    )
    text = RUNBOOK.replace("SERVERS", "\n".join(servers))
    return text.replace("VENV", sys.prefix).replace("API", engine.api)


@pytest.mark.parametrize("kind", ENGINES)
def test_every_record_exactly_once(
    kind: Callable[[Path], Engine],
    tmp_path: Path,
    machines: dict[str, Machine],
    s3_server: str,
    s3_keys: dict[str, str],
) -> None:
    del s3_keys
    engine = kind(tmp_path)
    store = boto3.client("s3", endpoint_url=s3_server)
    store.create_bucket(Bucket="bucket")
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{n}", "messages": [{"role": "user", "content": f"q {n}"}]}
            for n in range(engine.prompts)]  # fmt: skip
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = runbook_text(engine)
    params = {"endpoint": s3_server, "prompts": str(prompts)}
    left, right = machines[LEFT], machines[RIGHT]
    seen: list[str] = []
    enough = engine.prompts // 20

    def listen(event: Event) -> None:
        """Both in the middle of the work, whichever is seen first."""
        if isinstance(event, Progressed) and (event.progress.get("done") or 0) >= enough:
            if event.task == "generate@right" and "power lost" not in seen:
                seen.append("power lost")
                right.lose_power()
            if event.task == "generate@left" and "cut" not in seen:
                seen.append("cut")
                left.sshd.stop()
        # It stays away until the other one is through.
        ended = isinstance(event, TaskMoved) and (event.task, event.state) == WAITED_FOR
        if ended and left.sshd.process is None:
            left.sshd.start()

    folder = tmp_path / "ws"
    with Service.create(folder, load_text(text, path="r.yaml", params=params), actor="me") as run:
        for machine in machines.values():
            run.bind(machine.name, machine.binding())
        assert run.run(listen=listen).outcome == "done", states(run)
        assert set(states(run).values()) == {"done"}
        attempts = {
            name: [one.state.value for one in run.snapshot().attempts_of(name)]
            for name in ("generate@left", "generate@right")
        }
        why = run.snapshot().attempts_of("generate@right")[0].cls
        served = [task.id for task in run.snapshot().tasks if task.id.startswith("serve-right")]
        serves = [len(run.snapshot().attempts_of(name)) for name in served]
    assert sorted(seen) == ["cut", "power lost"]
    assert attempts["generate@left"] == ["verified"], "a cut is no reason to start again"
    assert attempts["generate@right"] == ["lost", "verified"]
    assert why == "lost_reboot"
    assert serves == [2] * engine.each
    found: list[str] = []
    for name in (LEFT, RIGHT):
        there = machines["desk"].folder / "work" / "completions" / name
        found += [record["id"] for record in read_records(shard_paths(there))]
    assert sorted(found) == sorted(str(row["id"]) for row in rows)
