"""Starts of real SGLang that fail, each provoked for real and taken the whole way: step, job, log,
diagnosis, what status says.

The quickest are always run; the others load a model first, and belong to the soak. What a CPU
cannot provoke is in test_last_words.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.deadline import wait_for
from tests.support.failing_servers import Failing, Told, told, workspace, wrap
from tests.support.ports import free_ports
from tests.support.sglang_server import serve_python, session_members
from tests.support.toy_model import make_toy_model
from tests.support.workspaces import states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from remote.model import JobStatus
    from runbook.service import Service

REPORT = "RUNBOOK_REPORT"
BLOCKED = """\
import os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == os.environ["BLOCKED"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""
"""A package that was left out of the environment."""


LISTEN = """\
import socket, sys, time
listener = socket.socket()
flag, *words = sys.argv[1:]
listener.bind(("0.0.0.0", int(words[words.index(flag) + 1])))
listener.listen()
time.sleep(3600)
"""
"""Somebody who comes between our look at a port and the server's own."""
KILL_WHILE_LOADING = """\
import os, signal, time
while True:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            title = open(f"/proc/{name}/cmdline", "rb").read()
            if title.startswith(b"sglang::scheduler") and os.getsid(int(name)) == os.getsid(0):
                raise SystemExit(os.kill(int(name), signal.SIGKILL))
        except OSError:
            pass
    time.sleep(0.05)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provoked:
    """A way to make a start fail, and what is to be said of it."""

    kind: str
    said: str
    """In the line of the log that counts; or one of several, between bars."""
    how: str
    given: Callable[[World], dict[str, Any]] = lambda _: {}
    before: Callable[[World], str] = lambda _: ""
    final: bool = True
    cls: str = ""
    """Of the failure, where the log cannot tell."""


IN_A_SMALL_GROUP = """\
group=/sys/fs/cgroup/memory/runbook-test-$$ limit=memory.limit_in_bytes
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  group=/sys/fs/cgroup/runbook-test-$$ limit=memory.max
fi
mkdir $group && echo 1000000000 > $group/$limit && echo $$ > $group/cgroup.procs"""
"""Empty groups stay until the machine is started anew."""


class World:
    """Folders that are bad in one way each."""

    def __init__(self, folder: Path, aside: Path) -> None:
        self.folder, self.open = folder, aside
        self.toy = make_toy_model(folder / "toy").path
        (folder / "absent").mkdir()
        (folder / "absent" / "sitecustomize.py").write_text(BLOCKED)

    def model(self, name: str, *, without: tuple[str, ...] = (), **edits: Any) -> dict[str, Any]:
        """A copy of the model without some files, and with other things in its config.json."""
        copy = self.folder / name
        shutil.copytree(self.toy, copy, ignore=lambda *_: without)
        if edits:
            config = copy / "config.json"
            config.write_text(json.dumps(json.loads(config.read_text()) | edits))
        return {"model": str(copy)}

    def cut(self, name: str, file: str, size: int) -> dict[str, Any]:
        """One whose file ends early, as an interrupted copy leaves it."""
        given = self.model(name)
        os.truncate(Path(given["model"]) / file, size)
        return given

    def closed(self) -> dict[str, Any]:
        """One that others may not read, below a folder that they may enter, unlike the tests'."""
        model = Path(self.model("closed")["model"])
        self.open.chmod(0o755)
        model = Path(shutil.move(model, self.open))
        model.chmod(0o700)
        return {"model": str(model)}

    def blocked(self, package: str) -> str:
        return f'export PYTHONPATH="{self.folder}/absent" BLOCKED={package}'

    def beside(self, name: str, program: str, *words: str) -> str:
        """A program that runs beside the server, in its session; it gets its arguments."""
        (self.folder / f"{name}.py").write_text(program)
        return f'python3 "{self.folder}/{name}.py" {" ".join(words)} "$@" &'


def extra(*words: str) -> Callable[[World], dict[str, Any]]:
    return lambda _: {"extra": list(words)}


def given(**args: Any) -> Callable[[World], dict[str, Any]]:
    return lambda _: args


AT_ONCE = {
    # `extra` is held against the flags of the release: of one that is not known it is passed on.
    "flag": Provoked(
        kind="flag", said="--cuda-graph-max-bs", how="a flag of an older release",
        given=given(version="0.9.9", extra=["--cuda-graph-max-bs", "8"]),
    ),
    "no-folder": Provoked(
        kind="model", said="Repo id must be in the form", how="a folder that is not there",
        given=lambda world: {"model": f"{world.folder}/nowhere"},
    ),
    "no-package": Provoked(
        kind="package", said="No module named 'xgrammar'", how="a package left out of the venv",
        before=lambda world: world.blocked("xgrammar"),
    ),
    "dflash-on-cpu": Provoked(
        kind="backend", said="DFLASH speculative decoding is not supported",
        how="a drafter on a machine without a GPU",
        given=lambda world: {"extra": ["--speculative-algorithm", "DFLASH",
                                       "--speculative-draft-model-path", str(world.toy)]},
    ),
}  # fmt: skip
LATE = {
    "choice": Provoked(
        kind="flag", said="invalid choice: 'int4'", how="a dtype that it does not have",
        given=given(dtype="int4"),
    ),
    "parser": Provoked(
        kind="flag", said="nonsense", how="a reasoning parser that it does not have",
        given=given(reasoning_parser="nonsense"),
    ),
    "template": Provoked(
        kind="template", said="nothing.jinja", how="a chat template that is not there",
        given=extra("--chat-template", "/models/nothing.jinja"),
    ),
    "no-config": Provoked(
        kind="model", said="Unrecognized model", how="no config.json",
        given=lambda world: world.model("no-config", without=("config.json",)),
    ),
    "torn-config": Provoked(
        kind="model", said="is not a valid JSON file", how="config.json cut off",
        given=lambda world: world.cut("torn-config", "config.json", 40),
    ),
    "no-tokenizer": Provoked(
        kind="model", said="okenizer", how="no tokenizer files",
        given=lambda world: world.model(
            "no-tokenizer", without=("tokenizer.json", "tokenizer_config.json")),
    ),
    "no-weights": Provoked(
        kind="model", said="Cannot find any model weights", how="no safetensors",
        given=lambda world: world.model("no-weights", without=("model.safetensors",)),
    ),
    "cut-weights": Provoked(
        kind="weights", said="SafetensorError", how="model.safetensors cut off",
        given=lambda world: world.cut("cut-weights", "model.safetensors", 200_000),
    ),
    "empty-weights": Provoked(
        kind="weights", said="SafetensorError", how="model.safetensors of 0 bytes",
        given=lambda world: world.cut("empty-weights", "model.safetensors", 0),
    ),
    "small-vocabulary": Provoked(
        kind="shapes", said="org_vocab_size=100", how="config.json of another vocabulary",
        given=lambda world: world.model("small-vocabulary", vocab_size=100),
    ),
    "architecture": Provoked(
        kind="architecture", said="NobodyForCausalLM", how="an architecture that nobody knows",
        given=lambda world: world.model("architecture", architectures=["NobodyForCausalLM"]),
    ),
    "context": Provoked(
        kind="context", said="context_length", how="context_length beyond the model's",
        given=given(context_length=99999),
    ),
    "pool": Provoked(
        kind="pool", said="no GPU memory for the KV cache", how="mem_fraction that leaves no pool",
        given=given(mem_fraction=0.0001),
    ),
    "no-gpu": Provoked(
        kind="no_gpu", said="", how="device cuda on a machine without a GPU",
        given=given(device="cuda"),
    ),
    "hicache": Provoked(
        kind="no_gpu", said="not compiled with CUDA", how="the hierarchical cache without CUDA",
        given=extra("--enable-hierarchical-cache", "--hicache-size", "1"),
    ),
    "attention": Provoked(
        kind="backend", said="", how="an attention backend for Hopper on a CPU",
        given=extra("--attention-backend", "fa3"),
    ),
    "no-memory": Provoked(
        kind="oom", said="memory", how="`ulimit -v` of 1.2 GB",
        before=lambda _: "ulimit -v 1200000",
    ),
    "cgroup": Provoked(
        kind="", said="", cls="oom", how="a memory control group of 1 GB: the kernel kills",
        before=lambda _: IN_A_SMALL_GROUP, final=False,
    ),
    "closed-folder": Provoked(
        kind="model", said="Unrecognized model", how="a model folder of another user, 0700",
        given=lambda world: world.closed(),
        before=lambda _: as_nobody(serve_python().with_name("sglang")),
    ),
    "full-shm": Provoked(
        kind="crash", said="exit code: -7", how="a full /dev/shm", final=False,
        before=lambda _: full_shm(serve_python().with_name("sglang")),
    ),
    "watchdog": Provoked(
        kind="watchdog", said="watchdog timeout", how="a watchdog of 1 ms",
        given=extra("--watchdog-timeout", "0.001"), final=False,
    ),
    "port": Provoked(
        kind="port", said="in use", how="a listener that comes between the check and the bind",
        before=lambda world: world.beside("listen", LISTEN, "--port"), final=False,
    ),
    "nccl-port": Provoked(
        kind="port", said="in use", how="the same for the second port",
        before=lambda world: world.beside("listen", LISTEN, "--nccl-port"), final=False,
    ),
    "killed-while-loading": Provoked(
        kind="killed", said="exit code: -9", how="SIGKILL of the scheduler when it loads",
        before=lambda world: world.beside("kill", KILL_WHILE_LOADING), final=False,
    ),
    "killed": Provoked(
        kind="killed", said="exit code -9", how="SIGKILL of the scheduler when it serves",
        final=False,
    ),
    "crash": Provoked(
        kind="crash", said="exit code -11|Segmentation fault",
        how="SIGSEGV of the scheduler when it serves", final=False,
    ),
}  # fmt: skip
AFTER = {"killed": signal.SIGKILL, "crash": signal.SIGSEGV}
"""Done to the scheduler of one that serves."""
BY_ITSELF = ("watchdog",)
"""It may serve for some seconds first."""


def as_nobody(program: Path) -> str:
    return f'export HOME=/tmp; exec setpriv --reuid 65534 --clear-groups "{program}" "$@"'


def full_shm(program: Path) -> str:
    """In a mount namespace of its own."""
    mount = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/fill"
    return f'exec unshare -m sh -c \'{mount}; exec "{program}" "$@"\' sh "$@"'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="runbook-", dir="/tmp") as aside:
        yield World(tmp_path / "world", Path(aside))


def base(world: World) -> dict[str, Any]:
    return {"model": str(world.toy), "served_name": "m", "device": "cpu", "dtype": "float32",
            "max_total_tokens": 2048, "stagger": 0, "grace": 5, "ready_within": "10m"}  # fmt: skip


def servers(world: World, chosen: dict[str, Provoked]) -> list[Failing]:
    real = serve_python().with_name("sglang")
    found = []
    for (name, one), port in zip(chosen.items(), free_ports(len(chosen)), strict=True):
        venv = wrap(world.folder / "venvs" / name, real, one.before(world))
        found.append(
            Failing(name=name, given={"venv": str(venv), "port": port, **one.given(world)})
        )
    return found


def problem(one: Provoked, found: Told) -> str:
    """What is not as it should be."""
    line = found.reason.partition("Its log: ")[2]
    same = (found.kind, found.final, one.cls or found.cls) == (one.kind, one.final, found.cls)
    if same and any(words in line for words in one.said.split("|")):
        return ""
    words = found.log.strip().splitlines()[-25:]
    return f"{found.kind!r} and not {one.kind!r}: {found.reason}\n" + "\n".join(words)


def test_the_quickest(tmp_path: Path, world: World) -> None:
    with workspace(tmp_path, servers(world, AT_ONCE), base(world)) as service:
        assert service.run().outcome == "failed"
        wrong = {name: problem(one, told(service, name)) for name, one in AT_ONCE.items()}
        assert not any(wrong.values()), "\n".join(wrong.values())
        assert "write --cuda-graph-max-bs-decode" in told(service, "flag").reason


@pytest.mark.skipif("RUNBOOK_SOAK" not in os.environ, reason="make soak: 26 starts of SGLang")
@pytest.mark.timeout(7000)
def test_the_others(tmp_path: Path, world: World) -> None:
    """All are tried before anything is judged; RUNBOOK_REPORT names a file for the table."""
    chosen = {name: one for name, one in LATE.items()
              if name in os.environ.get("RUNBOOK_ONLY", name).split(",")}  # fmt: skip
    wrong: dict[str, str] = {}
    with workspace(tmp_path, servers(world, chosen), base(world)) as service:
        for name, one in chosen.items():
            began = time.monotonic()
            provoke(service, name)
            found = told(service, name)
            wrong[name] = problem(one, found)
            note(name, one, found, wrong[name], time.monotonic() - began)
    assert not any(wrong.values()), "\n\n".join(filter(None, wrong.values()))


def provoke(service: Service, name: str) -> None:
    """Starts one, and kills its scheduler when it is one that serves first."""
    service.run(only=[name])
    serves = states(service)[name] == "serving"
    if name in AFTER:
        assert serves, service.snapshot().task(name).reason
        os.kill(scheduler(service, name), AFTER[name])
    elif serves and name not in BY_ITSELF:
        service.stop(name)  # it did not fail: the others need the memory
        return
    if serves:
        wait_for(lambda: status(service, name).state == "exited", limit_s=300,
                 what="the server to end")  # fmt: skip
        service.run(only=[name])


def status(service: Service, name: str) -> JobStatus:
    """Of the task's last attempt, as its host says."""
    snapshot = service.snapshot()
    attempt = snapshot.latest_attempt(name)
    assert attempt is not None
    return service._hosts.of_role(snapshot, "box").poll([attempt.id])[attempt.id]


def scheduler(service: Service, name: str) -> int:
    pid = status(service, name).pid
    assert pid is not None
    schedulers = [
        member for member in session_members(os.getsid(pid))
        if b"sglang::scheduler" in Path(f"/proc/{member}/cmdline").read_bytes()
    ]  # fmt: skip
    assert schedulers, session_members(os.getsid(pid))
    return schedulers[0]


def note(name: str, one: Provoked, found: Told, wrong: str, seconds: float) -> None:
    """A row of the table in docs/faults.md, and the log beside it."""
    report = os.environ.get(REPORT)
    if report is None:
        return
    mark = "" if not wrong else " **wrong**"
    line = " ".join(found.reason.partition("Its log: ")[2].split())[:120]
    row = f"| {one.how} | `{found.kind}`{mark} | {line} | {seconds:.0f} s |\n"
    with Path(report).open("a") as file:
        file.write(row)
    Path(f"{report}.{name}.log").write_text(f"{found.reason}\n\n{found.log}")
