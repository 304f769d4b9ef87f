"""What the tests run in processes of their own, to be killed: `python processes.py VERB DB ...`."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from state import StateMoved, TaskState, open_store
from state.graph import ready

ROOT = Path(__file__).parents[2]


def start(*args: str | Path) -> subprocess.Popen[str]:
    """One of the verbs below, with pipes on both sides."""
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def end(process: subprocess.Popen[str]) -> int:
    """Kill it if it lives, wait, close the pipes."""
    process.kill()
    code = process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        pipe.close()
    return code


def say(*words: object) -> None:
    # One write call: a killed process leaves a whole line or none.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def claim_units(db: Path, seed: str) -> None:
    """Claim ready tasks at random, and say so only when the claim is committed."""
    chance = random.Random(seed)
    with open_store(db, actor=f"writer-{os.getpid()}") as store:
        while units := ready(store.snapshot()):
            unit = chance.choice(units).id
            try:
                with store.write() as tx:
                    tx.move_task(unit, TaskState.ACTIVE, expect=[TaskState.READY])
                    attempt = tx.create_attempt(unit, host="box", epoch=None)
            except StateMoved:
                continue
            say("claimed", unit, attempt.id)
            with store.write() as tx:
                tx.move_task(unit, TaskState.VERIFYING, expect=[TaskState.ACTIVE])
            with store.write() as tx:
                tx.move_task(unit, TaskState.DONE, expect=[TaskState.VERIFYING])
            say("done", unit)


def first_start(db: Path) -> None:
    """Open a store that does not exist yet, when told to."""
    say("waiting")
    sys.stdin.readline()
    with open_store(db, actor=f"first-{os.getpid()}") as store:
        say(store.snapshot().meta.workspace_id, store.revision())


def hold_lease(db: Path, holder: str) -> None:
    """Acquire and keep until killed."""
    store = open_store(db, actor=holder)
    lease = store.acquire("run", holder)
    say(lease.token, lease.acquired_at)
    sys.stdin.readline()


if __name__ == "__main__":
    verbs = {verb.__name__: verb for verb in (claim_units, first_start, hold_lease)}
    verbs[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
