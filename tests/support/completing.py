"""`dflash generate` against server processes that misbehave on request."""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import subprocess
import sys
import threading
import urllib.request

from dflash.__main__ import main
from dflash.completions import read_records, shard_paths
from tests.support.deadline import wait_for
from tests.support.ports import free_port

ROOT = pathlib.Path(__file__).parents[2]
FAKE_SERVER = ROOT / "tests" / "dflash" / "fake_server.py"


class Server:
    def __init__(self, folder, *options):
        self.folder = folder
        self.options = options
        self.port = free_port()  # also while it is down, nobody else gets it
        self.process = None
        self.start()

    def start(self):
        port_file = self.folder / "port"
        port_file.unlink(missing_ok=True)
        command = [sys.executable, str(FAKE_SERVER), str(port_file)]
        self.process = subprocess.Popen([*command, "--port", str(self.port), *self.options])
        wait_for(port_file.exists, what="the server's port")

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def faults(self, *faults, health=200, **more):
        rows = [{"kind": kind, "times": times} for kind, times in faults]
        data = json.dumps({"faults": rows, "health": health, **more}).encode()
        request = urllib.request.Request(f"{self.url}/_faults", data=data)
        with urllib.request.urlopen(request, timeout=60):
            pass

    def hurry(self):
        """No delay any more: what a test needed the time for has happened."""
        self.faults(delay=0)

    def seen(self):
        with urllib.request.urlopen(f"{self.url}/_seen", timeout=60) as response:
            return json.load(response)

    def most(self):
        """The most requests that it had at one time."""
        with urllib.request.urlopen(f"{self.url}/_most", timeout=60) as response:
            return json.load(response)

    def kill(self):
        self.process.kill()
        self.process.wait()


def command(prompts, out, *servers, extra=()):
    words = [sys.executable, "-m", "dflash", "generate", "--prompts", str(prompts)]
    words += ["--out", str(out), "--model", "toy", "--concurrency", "4", "--shard-rows", "7"]
    for server in servers:
        words += ["--server", server if isinstance(server, str) else server.url]
    return [*words, *extra]


def generate(*args, check=0, **kwargs):
    """The command as a user calls it, in this process: starting Python costs more than it does."""
    text = io.StringIO()
    with contextlib.redirect_stderr(text):
        code = main(command(*args, **kwargs)[3:])
    assert code == check, text.getvalue()
    return text.getvalue()


@contextlib.contextmanager
def going_on_when(reached, *servers):
    """Beside the block: servers that wait with their answers give them once that is so."""

    def watch():
        try:
            wait_for(reached, what="what the servers wait for")
        finally:
            for server in servers:
                server.hurry()

    watching = threading.Thread(target=watch)
    watching.start()
    yield
    watching.join()


def rows_of(out):
    return list(read_records(shard_paths(out)))


def count_rows(out):
    """Distinct whole rows, sealed or not."""
    paths = [*out.glob("shard-*.jsonl"), out / "inflight.jsonl"]
    lines = [line for path in paths if path.is_file() for line in lines_of(path)]
    return len({json.loads(line)["id"] for line in lines if line.endswith(b"\n")})


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)
