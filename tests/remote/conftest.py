"""A host on this machine in a directory of its own, with nothing left running afterwards."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote import Host, JobSpec, JobStatus, LocalTransport
from tests.support.deadline import wait_for
from tests.support.sshd import Sshd, running_sshd

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server for the tests of one file."""
    with running_sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture(autouse=True)
def no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have keys of their own at hand."""
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


class Bench:
    """Makes hosts under one root, launches, and waits for what comes of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.machine = root.parent / "machine"  # where claims of its resources lie
        self.machine.mkdir()
        self.machine.chmod(0o1777)
        self.host = self.make_host()

    def make_host(self, workspace: str = "w", **inject: Any) -> Host:
        given = {"machine_root": str(self.machine), **inject}
        return Host(LocalTransport(), root=str(self.root), workspace_id=workspace, inject=given)

    def job(self, attempt: str) -> Path:
        return self.root / "w" / "jobs" / attempt

    def spec(self, attempt: str, script: str, **more: Any) -> JobSpec:
        given = {"task": "task", "generation": 1, "argv": ("sh", "-c", script), "grace_s": 2.0}
        return JobSpec(attempt=attempt, **{**given, **more})

    def launch(self, attempt: str, script: str, **more: Any) -> JobStatus:
        return self.host.launch(self.spec(attempt, script, **more))

    def status(self, attempt: str) -> JobStatus:
        return self.host.poll([attempt])[attempt]

    def ended(self, attempt: str, *, limit_s: float = 60) -> JobStatus:
        def over() -> JobStatus | None:
            if self.supervisors() and not (self.job(attempt) / "exit.json").exists():
                return None
            found = self.status(attempt)
            return found if found.state not in ("running", "published") else None

        found = wait_for(over, limit_s=limit_s, what=f"{attempt} to end")
        assert found is not None
        return found

    def text(self, attempt: str, name: str = "out.log") -> str:
        path = self.job(attempt) / name
        return path.read_text(errors="replace") if path.exists() else ""

    def said(self, attempt: str, text: str) -> None:
        wait_for(lambda: text in self.text(attempt), what=f"{attempt} to print {text!r}")

    def processes(self, attempt: str = "", below: Path | None = None) -> list[int]:
        """Every live process that carries a job directory below this root."""
        mark = f"RUNBOOK_JOB_DIR={below or self.root}/".encode()
        if attempt:
            mark = f"RUNBOOK_JOB_DIR={self.job(attempt)}".encode() + b"\0"
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if mark in (entry / "environ").read_bytes() + b"\0" and state != "Z":
                        found.append(int(entry.name))
        return found

    def supervisors(self, below: Path | None = None) -> list[int]:
        """Until they die; what they hold open may be closed a moment later."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    root = str(below or self.root).encode()
                    if b"supervise" in words and root in b" ".join(words):
                        found.append(int(entry.name))
        return found

    def clean(self) -> None:
        """Nothing writes below the folder any more, under another user's root neither."""
        below = self.root.parent

        def gone() -> bool:
            left = [*self.supervisors(below), *self.processes(below=below)]
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not left

        wait_for(gone, what="what the jobs left to be gone")


@pytest.fixture
def bench(tmp_path: Path):
    made = Bench(tmp_path.resolve() / "root")
    yield made
    made.clean()


@pytest.fixture
def open_bench() -> Iterator[Bench]:
    """Not in tmp_path: nobody else gets in there, whenever another session of pytest starts."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        made = Bench(Path(name).resolve() / "root")
        yield made
        made.clean()
