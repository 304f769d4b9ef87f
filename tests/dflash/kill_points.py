"""Kills `dflash generate` at every step that changes a disk or a store, and lets it go on.

Run as `kill_points.py SERVER FOLDER LIMIT`; one line of JSON for each kill. A child is forked for
each, so that nothing is imported again. In it, the Nth of these steps ends with SIGKILL, before it,
after it, and in the middle where it is a write: a row, a sync, a rename, an upload.

LIMIT is how many of the same kind are tried.
"""

from __future__ import annotations

import functools
import io
import json
import os
import pathlib
import signal
import sys
import warnings
from collections import Counter

import httpx  # noqa: F401 (imported once, for all children)

from dflash import completions, files
from dflash.__main__ import main
from dflash.objects import FolderStore

PROMPTS = 10
SHARD = 4


class Points:
    """Counts the steps; dies at one."""

    def __init__(self, die_at: int = -1) -> None:
        self.names: list[str] = []
        self._die_at = die_at

    def pass_(self, name: str, torn=None) -> None:
        """`torn` leaves half of a write behind."""
        if len(self.names) == self._die_at:
            if torn is not None:
                torn()
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)

    def wrap(self, owner, attribute: str, name: str) -> None:
        plain = getattr(owner, attribute)

        @functools.wraps(plain)
        def wrapped(*args, **kwargs):
            self.pass_(f"before {name}")
            found = plain(*args, **kwargs)
            self.pass_(f"after {name}")
            return found

        setattr(owner, attribute, wrapped)

    def install(self) -> None:
        self.wrap(os, "fsync", "sync")
        self.wrap(os, "replace", "rename")
        self.wrap(completions.CompletionStore, "_write_manifest", "manifest")
        self.wrap(FolderStore, "send", "upload")
        self.wrap(FolderStore, "write", "store manifest")
        self.wrap(files, "sync_folder", "folder sync")
        append = completions.CompletionStore._append
        points = self

        def torn_append(store, line):
            points.pass_("in a row", lambda: store._tail.write(line[: len(line) // 2]))
            append(store, line)
            points.pass_("after a row")

        completions.CompletionStore._append = torn_append


def run(server: str, folder: pathlib.Path, die_at: int) -> tuple[int, list[str]]:
    """In a child: its exit status, and the steps that it passed."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        points = Points(die_at)
        points.install()
        sys.stderr = io.StringIO()
        code = main(
            [
                "generate", "--prompts", str(folder.parent / "prompts.jsonl"), "--server", server,
                "--model", "toy", "--out", str(folder / "out"), "--concurrency", "2",
                "--shard-rows", str(SHARD), "--upload", f"file://{folder}/store",
            ]
        )  # fmt: skip
        os.write(write, json.dumps([code, points.names, sys.stderr.getvalue()[-300:]]).encode())
        os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), json.loads(said) if said else []


def problems(folder: pathlib.Path) -> list[str]:
    """What is not as it must be after the last run."""
    found, out, store = [], folder / "out", folder / "store"
    rows = list(completions.read_records(completions.shard_paths(out)))
    ids = sorted(row["id"] for row in rows)
    if ids != [f"p{n:03d}" for n in range(PROMPTS)]:
        found.append(f"ids {ids}")
    manifest = completions.read_manifest(out)
    found += [
        f"{place / entry['file']} is another"
        for entry in manifest["shards"]
        for place in (out, store)
        if files.sha256_file(place / entry["file"]) != entry["sha256"]
    ]
    if not manifest["complete"] or (out / "inflight.jsonl").read_bytes():
        found.append("not finished")
    if (store / "manifest.json").read_bytes() != (out / "manifest.json").read_bytes():
        found.append("another manifest was uploaded")
    listed = {row["path"] for row in json.loads((store / ".objects.json").read_text())["files"]}
    if listed != {"manifest.json", *(entry["file"] for entry in manifest["shards"])}:
        found.append(f"uploaded: {sorted(listed)}")
    left = [str(path) for path in folder.rglob(".*.part")]
    return found + left


def campaign(server: str, top: pathlib.Path, limit: int) -> None:
    rows = [
        {"id": f"p{n:03d}", "messages": [{"role": "user", "content": f"question {n}"}]}
        for n in range(PROMPTS)
    ]
    (top / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (top / "whole").mkdir()
    code, said = run(server, top / "whole", -1)
    assert code == 0, said
    assert not problems(top / "whole")
    tried: Counter[str] = Counter()
    for number, name in enumerate(said[1]):
        tried[name] += 1
        if tried[name] > limit:
            continue
        folder = top / f"kill-{number}"
        folder.mkdir()
        killed, _ = run(server, folder, number)
        again, said_again = run(server, folder, -1)
        wrong = problems(folder) if again == 0 else [f"ended with {again}: {said_again}"]
        print(json.dumps({"at": name, "killed": killed == -9, "wrong": wrong}), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    campaign(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]))
