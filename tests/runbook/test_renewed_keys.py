"""Jobs that run longer than their keys: the engine hands new ones, or runs them again with new."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dflash.errors import EXIT_KEYS
from remote import JobStatus, LocalTransport
from runbook.engine import handing, hosts, renewing
from runbook.engine.renewing import is_due
from runbook.grants import issue
from state import HostBinding
from tests.support import engine_process
from tests.support.completing import Server, rows_of
from tests.support.deadline import wait_for
from tests.support.s3 import s3_keys
from tests.support.s3_ending import EndingStore, ending
from tests.support.workspaces import make, settle, states

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from runbook.grants import Issued
    from runbook.service import Service

    Make = Callable[[str], "Far"]

__all__ = ["ending", "s3_keys"]

STORE = 'url: s3://bucket/runs, endpoint: "ENDPOINT", region: us-east-1'
FOLLOW = """\
  follow:
    title: A folder that grows
    phase: one
    step: s3_sync
    with: {venv: PREFIX, source: "${host.work}/grows", until: end, every: 50ms, settle: 0s, STORE}
"""
SEND = """\
  send:
    title: A folder
    phase: one
    step: upload
    with: {venv: PREFIX, source: "${host.work}/grows", STORE}
"""
ROWS, SHARD = 40, 5
ANSWERS = """\
  answers:
    title: Answers that go where keys open for a while only
    phase: one
    step: generate
    with:
      venv: PREFIX
      prompts: ${host.work}/prompts.jsonl
      servers: [SERVER]
      model: toy
      out: ${host.work}/out
      concurrency: 2
      shard_rows: 5
      audit_after: 0
      upload: s3://bucket/runs
      endpoint: ENDPOINT
      region: us-east-1
"""


class Far:
    """A workspace with one job on a machine that counts as rented."""

    def __init__(self, folder: Path, service: Service, store: EndingStore) -> None:
        self.folder, self.service, self.store = folder, service, store
        self.work = self.folder / "work"
        self.said: list[str] = []
        self.issued: list[Issued] = []

    def run(self) -> None:
        result = self.service.run(listen=lambda event: self.said.append(str(event)))
        assert result.outcome == "done", (result, self.said[-3:])

    def codes(self) -> list[int | None]:
        return [attempt.exit_code for attempt in self.service.snapshot().attempts]

    def progress(self) -> list[dict[str, Any]]:
        found = []
        for path in self.folder.glob("root/*/jobs/*/progress.jsonl"):
            found += [json.loads(line) for line in path.read_text().splitlines()]
        return found

    def has(self, name: str) -> bool:
        return self.store.puts[f"/bucket/runs/{name}"] > 0

    def require_once(self, *names: str) -> None:
        """Each file once in the store, and no key left anywhere."""
        settle(self.folder)
        there = {path for path in self.store.puts if path.startswith("/bucket/runs/")}
        assert there == {f"/bucket/runs/{name}" for name in (*names, ".objects.json")}
        assert {self.store.puts[path] for path in there} == {1}, "nothing went twice"
        for path in self.folder.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            for made in self.issued:
                assert not any(value.encode() in content for value in made.values.values()), path


@pytest.fixture
def far(tmp_path: Path, ending: EndingStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(hosts, "open_transport", lambda _: LocalTransport())
    monkeypatch.setattr(renewing, "AGAIN_S", 0.2)
    with ExitStack() as stack:

        def made(tasks: str) -> Far:
            text = tasks.replace("STORE", STORE).replace("PREFIX", sys.prefix)
            text = text.replace("ENDPOINT", ending.url)
            folder = tmp_path / "ws"
            found = Far(folder, stack.enter_context(make(folder, text)), ending)
            (found.work / "grows").mkdir(parents=True)
            binding = HostBinding(
                role="box", kind="ssh", address="127.0.0.1", root=str(found.folder / "root"),
                work=str(found.work),
            )  # fmt: skip
            found.service.bind("box", binding)

            def watched(*args: Any) -> Issued:
                found.issued.append(issue(*args))
                return found.issued[-1]

            for module in (handing, renewing):
                monkeypatch.setattr(module, "issue", watched)
            return found

        yield made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "server").mkdir()
    made = Server(tmp_path / "server", "--delay", "0.1")
    yield made
    made.kill()


@contextmanager
def growing(far: Far) -> Iterator[None]:
    """Its keys end after the first file, and the second must arrive before there is an end."""
    folder = far.work / "grows"
    (folder / "a").write_text("a")

    def write() -> None:
        wait_for(lambda: far.has("a"), limit_s=90, what="the first file")
        far.store.end()
        (folder / "b").write_text("b")
        wait_for(lambda: far.has("b"), limit_s=90, what="the second file")
        (folder / "end").write_text("")

    writer = threading.Thread(target=write)
    writer.start()
    yield
    writer.join()


def test_new_keys_come_while_it_runs(far: Make) -> None:
    here = far(FOLLOW)
    with growing(here):
        here.run()
    here.require_once("a", "b", "end")
    assert (here.codes(), here.store.keys, len(here.issued)) == ([0], 2, 2)
    assert any("the keys have run out" in one["message"] for one in here.progress())
    assert any("it has new keys, which hold until" in text for text in here.said)


@pytest.mark.parametrize("at", ["before", "after"])
def test_an_engine_killed_at_the_hand_over_does_no_harm(far: Make, at: str) -> None:
    here = far(FOLLOW)
    with growing(here):
        words = [sys.executable, engine_process.__file__, str(here.folder), at]
        engine = subprocess.Popen(words, cwd=Path(__file__).parents[2])
        assert engine.wait(timeout=90) == -signal.SIGKILL
        assert states(here.service) == {"follow": "active"}
        here.run()
    here.require_once("a", "b", "end")
    assert here.codes() == [0]


def test_without_an_operator_all_is_kept_and_goes_when_one_is_back(
    far: Make, server: Server
) -> None:
    leave = threading.Event()
    here = far(ANSWERS.replace("SERVER", server.url))
    ids = [f"p{number}" for number in range(ROWS)]
    with (here.work / "prompts.jsonl").open("w") as file:
        for name in ids:
            prompt = {"id": name, "messages": [{"role": "user", "content": f"say {name}"}]}
            file.write(json.dumps(prompt) + "\n")

    def operator_leaves() -> None:
        wait_for(lambda: here.has("shard-00000.jsonl"), limit_s=90, what="the first shard")
        leave.set()

    here.store.uploads = 1  # then they end, and so do those that it may be handed on the way out
    watching = threading.Thread(target=operator_leaves)
    watching.start()
    here.service.run(stop_event=leave)
    watching.join()
    wait_for(
        lambda: list(here.folder.glob("root/*/jobs/*/exit.json")), limit_s=90, what="the job's end"
    )
    here.store.uploads = None
    server.kill()  # nothing is left to ask it
    waiting = [one["metrics"].get("to_upload", 0) for one in here.progress()]
    assert max(waiting) >= 2
    here.run()
    here.require_once(*(f"shard-{n:05}.jsonl" for n in range(ROWS // SHARD)), "manifest.json")
    assert sorted(row["id"] for row in rows_of(here.work / "out")) == sorted(ids)
    assert here.codes() == [EXIT_KEYS, 0]
    assert any("its keys had run out: run again with new ones (1 of 5)" in t for t in here.said)


def test_keys_that_are_dead_on_arrival_are_not_asked_for_for_ever(
    far: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = far(SEND)
    (here.work / "grows" / "a").write_text("a")
    here.store.uploads = 0
    monkeypatch.setattr(renewing, "MOST_RETRIES", 1)
    assert here.service.run().outcome == "failed"
    assert here.codes() == [EXIT_KEYS] * 2
    (task,) = here.service.snapshot().tasks
    assert "the keys have run out" in task.reason
    here.store.uploads = None
    here.service.retry("send")
    here.run()
    here.require_once("a")


def test_keys_are_due_when_a_third_of_their_time_is_left() -> None:
    def status(**more: Any) -> JobStatus:
        return JobStatus(attempt="a", state="running", **more)

    span = {"since": 1000.0, "end": 1300.0}
    assert not is_due(status(), 10**9), "none are handed to it"
    assert not is_due(status(keys=span), 1199)
    assert is_due(status(keys=span), 1200)
    for metrics, due in (({"keys": "expired"}, True), ({"keys": "until"}, False), (None, False)):
        assert is_due(status(keys=span, progress={"metrics": metrics}), 1001) is due
