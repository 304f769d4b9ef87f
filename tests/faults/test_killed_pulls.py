"""kill -9 of `pull` at any moment: no workspace or a whole one; the old state or the new.

RUNBOOK_SEED chooses the moments.
"""

from __future__ import annotations

import json
import os
import random
import select
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.service import Service
from runbook.sharing.contents import contents
from runbook.sharing.place import Place
from runbook.workspace import Workspace
from state.doctor import examine
from tests.support.served_verbs import served_verbs
from tests.support.shared import TASKS, take
from tests.support.workspaces import make

if TYPE_CHECKING:
    import subprocess

    from state import Snapshot

SEED = int(os.environ.get("RUNBOOK_SEED", "1"))
KILLS = min(100, int(os.environ.get("RUNBOOK_KILLS", "6")))


def killed_after(server: subprocess.Popen[bytes], seconds: float, out: Path, *words: str) -> int:
    """Runs one verb and kills it then, unless it has ended; its exit status."""
    assert server.stdin is not None
    assert server.stdout is not None
    order = {"verb": list(words), "actor": "puller", "out": str(out)}
    server.stdin.write(json.dumps(order).encode() + b"\n")
    pid = int(server.stdout.readline())
    if not select.select([server.stdout], [], [], seconds)[0]:
        server.stdin.write(json.dumps({"pid": pid, "signal": signal.SIGKILL}).encode() + b"\n")
    told = server.stdout.readline().split()
    assert told[:2] == [b"gone", str(pid).encode()]
    return os.waitstatus_to_exitcode(int(told[2]))


def digest_of(snapshot: Snapshot) -> str:
    return contents(snapshot).digest


def test_killed_pulls(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    place = Place(url=str(tmp_path / "state.runbook"))
    ann = make(tmp_path / "ann", TASKS)
    ann.push(place)
    old = ann.snapshot()
    shutil.copy(tmp_path / "state.runbook", tmp_path / "old.runbook")
    for number in range(40):
        ann.note(f"{number} " + "word " * 200)
    ann.push(place)
    new = ann.snapshot()
    ann.close()
    codes = []
    with served_verbs() as server:
        words = ("pull", place.url, "--dir", str(tmp_path / "first"), "--trust", digest_of(new))
        began = time.monotonic()
        assert killed_after(server, 60, tmp_path / "out", *words) == 0
        whole_s = time.monotonic() - began  # of this machine as busy as it is now
        for number in range(KILLS):
            fresh, behind = tmp_path / f"fresh{number}", tmp_path / f"behind{number}"
            take(Place(url=str(tmp_path / "old.runbook")), behind)
            for folder in (fresh, behind):
                words = ("pull", place.url, "--dir", str(folder), "--trust", digest_of(new))
                moment = whole_s * chance.random()
                codes.append(killed_after(server, moment, tmp_path / "out", *words))
                whole(folder, {new.revision, old.revision} if folder is behind else {new.revision})
                assert killed_after(server, 60, tmp_path / "out", *words) == 0
                whole(folder, {new.revision})
                with Service.open(folder) as service:
                    assert service.snapshot() == new
                    assert service.progress_is_current()
            shutil.rmtree(fresh)
            shutil.rmtree(behind)
    assert -signal.SIGKILL in codes
    # What the killed ones left went with the next one.
    assert not list(Path(tempfile.gettempdir()).glob("runbook-pull-*"))


def whole(folder: Path, revisions: set[int]) -> None:
    """No workspace yet, or one that is sound and at one of these revisions."""
    database = Workspace(folder).database
    if not database.exists():
        return
    assert examine(database) == []
    with Service.open(folder) as service:
        assert service.store.revision() in revisions
