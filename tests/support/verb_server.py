"""Runs verbs as processes of their own, without the second it takes to start Python each time.

`python verb_server.py`: one JSON line in ({"verb": [...], "actor": ..., "out": PATH}), one line out
(the child's pid), or {"pid": ..., "signal": ...} without an answer; when a child is gone,
`gone PID STATUS`. Children are forks of a process with one
thread and nothing open: they die by kill -9 as any process does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from typing import Any

# What the verbs import, loaded once.
import runbook.cli.act
import runbook.cli.advance
import runbook.cli.care
import runbook.cli.look_again
import runbook.cli.read
import runbook.cli.setup
import runbook.cli.share
import runbook.engine.runner
import runbook.sharing.file_store
import runbook.sharing.push
import state.migrate
from runbook.cli.main import main
from runbook.plan import load_runbook

__all__ = ["load_runbook", "runbook", "state"]


LIVING: set[int] = set()
TAKEN_OVER_S = 5.0
"""After so long a stop that nobody sees through is somebody else's: not a minute for each kill."""


def say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


def child(order: dict[str, Any]) -> None:
    """Never returns."""
    os.environ["RUNBOOK_ACTOR"] = order["actor"]
    out = os.open(order["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    err = os.open(order["out"] + ".err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = ["runbook", *order["verb"]]
    code = 0
    try:
        main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve() -> None:
    reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    say("ready")
    waiting = b""
    while True:
        readable, _, _ = select.select([0, reader], [], [])
        if reader in readable:
            os.read(reader, 4096)
            reap()
        if 0 in readable:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, waiting = (waiting + data).split(b"\n")
            for line in lines:
                order = json.loads(line)
                if "signal" in order:
                    if order["pid"] in LIVING:  # not reaped yet: the number is still its own
                        os.kill(order["pid"], order["signal"])
                    continue
                pid = os.fork()
                if pid == 0:
                    child(order)
                LIVING.add(pid)
                say(str(pid))


def reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        LIVING.discard(pid)
        say(f"gone {pid} {status}")


if __name__ == "__main__":
    runbook.engine.runner.STOP_TAKEN_OVER_S = TAKEN_OVER_S
    serve()
