"""One real SGLang server for tests: started in its own process group, stopped with all of it.

`RUNBOOK_SERVE_PYTHON` names the Python of an environment made from serve-cpu.lock with the CPU
platform installed. Killing only the launcher while it loads would leave its children behind, so
the whole group is killed and its absence is checked.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from remote.supervisor import shm
from tests.support.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIABLE = "RUNBOOK_SERVE_PYTHON"
START_SECONDS = 420


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningServer:
    """A ready server."""

    url: str
    name: str
    pgid: int


def serve_python() -> Path:
    """The serving environment's Python; its absence fails in CI and is a loud skip elsewhere."""
    found = os.environ.get(VARIABLE)
    if found and Path(found).is_file():
        return Path(found)
    problem = f"{VARIABLE} is {found!r}, no Python with SGLang (make one from serve-cpu.lock)"
    if os.environ.get("CI") == "true":
        pytest.fail(problem, pytrace=False)
    pytest.skip(problem)


@contextlib.contextmanager
def sglang_server(
    model: Path, *, name: str, log: Path, flags: tuple[str, ...] = ()
) -> Iterator[RunningServer]:
    """Serves a model folder until the block ends."""
    python = serve_python()
    port, rendezvous = free_ports(2)
    argv = [
        str(python), str(python.with_name("sglang")), "serve",
        "--model-path", str(model), "--served-model-name", name, "--device", "cpu",
        "--host", "127.0.0.1", "--port", str(port), "--nccl-port", str(rendezvous),
        "--dtype", "float32", "--mem-fraction-static", "0.2", "--max-total-tokens", "8192",
        "--max-running-requests", "8", "--disable-overlap-schedule", "--sleep-on-idle", *flags,
    ]  # fmt: skip
    with (
        log.open("wb") as out,
        subprocess.Popen(
            argv,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        ) as launcher,
    ):
        try:
            _wait_ready(launcher, f"http://127.0.0.1:{port}", model, log)
            yield RunningServer(url=f"http://127.0.0.1:{port}", name=name, pgid=launcher.pid)
        finally:
            stop_group(launcher)


def _environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    return env | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def stop_group(launcher: subprocess.Popen[bytes]) -> None:
    """TERM, a little time, KILL to the whole group, and proof that nothing of it is left."""
    pgid = launcher.pid
    shared = shm.opened(session_members(pgid))
    with contextlib.suppress(ProcessLookupError):
        os.kill(pgid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        launcher.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, signal.SIGKILL)
    launcher.wait()
    deadline = time.monotonic() + 60
    while members := session_members(pgid):
        assert time.monotonic() < deadline, f"processes of session {pgid} survive: {members}"
        time.sleep(0.05)
    # Left behind even by a clean exit.
    made = ("sglang_loads_", "sem.mp-")
    shm.remove({name: inode for name, inode in shared.items() if name.startswith(made)})


def session_members(session: int) -> list[int]:
    """Processes of a session that still run; zombies hold nothing."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, IndexError):
            state, _parent, _group, sid = stat.read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state not in "ZX":
                found.append(int(stat.parent.name))
    return found


def _wait_ready(launcher: subprocess.Popen[bytes], url: str, model: Path, log: Path) -> None:
    """Ready is: our process lives, one generation ran, and the server serves our folder."""
    deadline = time.monotonic() + START_SECONDS
    while _get(url + "/health") is None:
        if launcher.poll() is not None or time.monotonic() > deadline:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
            pytest.fail(f"SGLang did not start (exit {launcher.poll()}):\n{last}", pytrace=False)
        time.sleep(0.5)
    assert launcher.poll() is None
    info = json.loads(_get(url + "/model_info") or "{}")
    assert info.get("model_path") == str(model), f"another server answers at {url}: {info}"


def _get(url: str) -> bytes | None:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, urllib.error.URLError):
        return None


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """One JSON request, for what the commands under test do not ask."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
        return found
