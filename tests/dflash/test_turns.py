"""The lead works for all: the others wait as long as it takes, and hear how it ended."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dflash.errors import DflashError
from dflash.feed import PeerLost
from dflash.train_config import TrainConfig
from tests.support.ranks import in_ranks
from tests.support.tiny_runs import make_inputs, options

if TYPE_CHECKING:
    from collections.abc import Iterator

PULSES = 5
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture
def slow_store() -> Iterator[tuple[str, threading.Event]]:
    """An S3 that does not answer before it is told to, and then says no."""
    answers = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            answers.wait(60)
            body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            self.send_response(403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}", answers
    answers.set()
    server.shutdown()
    server.server_close()


def waiting(_rank: int, values: dict[str, Any], seen: str) -> int:
    """A start under torchrun that tells after each pulse that it waits still."""
    import torch.distributed as dist

    from dflash import turns
    from dflash.train import rank_main

    os.environ |= KEYS
    turns.PULSE_S = 0.05
    broadcast = dist.broadcast

    def counted(*args: Any, **more: Any) -> Any:
        done = broadcast(*args, **more)
        if os.environ["RANK"] == "0":
            with Path(seen).open("a", encoding="utf-8") as file:
                file.write(".")
        return done

    dist.broadcast = counted
    return rank_main(TrainConfig.from_json(values))


def test_a_restore_that_takes_long_is_waited_for_pulse_by_pulse(
    inputs: Path, tmp_path: Path, slow_store: tuple[str, threading.Event]
) -> None:
    """No wait of the others is longer than a pulse, so no time limit ends the restore."""
    endpoint, answers = slow_store
    out, seen = tmp_path / "out", tmp_path / "seen"
    values = options(inputs, out, colocated=False, upload="s3://bucket/a", endpoint=endpoint)

    def answer_after_pulses() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if seen.is_file() and len(seen.read_text()) >= PULSES:
                break
            time.sleep(0.01)
        answers.set()

    watching = threading.Thread(target=answer_after_pulses)
    watching.start()
    assert in_ranks(2, tmp_path, waiting, values, str(seen)) == [1, 1]
    watching.join()
    assert len(seen.read_text()) >= PULSES
    said = [json.loads((out / "rank-errors" / f"{n}.json").read_text()) for n in range(2)]
    assert said[0]["message"] == said[1]["message"]
    assert "AccessDenied" in said[0]["message"]


def failing(rank: int, values: dict[str, Any], how: str) -> tuple[str, str, int]:
    from dflash.ranks import join_group
    from dflash.turns import done_by_one

    def work() -> None:
        if how == "dies":
            os._exit(0)
        raise {"told": DflashError("the disk is full", "Free it."), "bug": KeyError("x")}[how]

    join_group(TrainConfig.from_json(values), cuda=False)
    try:
        done_by_one(work, mine=rank == 1, rank=1)
    except (DflashError, KeyError) as error:
        return type(error).__name__, str(error), getattr(error, "exit_code", 0)
    return "", "", 0


@pytest.mark.parametrize(
    ("how", "others", "lead"),
    [
        ("told", ("DflashError", "the disk is full", 1), ("DflashError", "the disk is full", 1)),
        ("bug", ("DflashError", "KeyError: 'x'", 1), ("KeyError", "'x'", 0)),
    ],
)
def test_what_fails_there_fails_everywhere(
    inputs: Path, tmp_path: Path, how: str, others: tuple[Any, ...], lead: tuple[Any, ...]
) -> None:
    values = options(inputs, tmp_path / "out", colocated=False)
    assert in_ranks(2, tmp_path, failing, values, how) == [others, lead]


def alone_in_the_end(rank: int, values: dict[str, Any], said: str) -> None:
    found = failing(rank, values, "dies")
    Path(said).write_text(json.dumps(found), encoding="utf-8")


def test_a_lead_that_dies_is_noticed_and_not_waited_for(inputs: Path, tmp_path: Path) -> None:
    """The time limit is far beyond what a test may take."""
    values = options(inputs, tmp_path / "out", colocated=False, timeout_s=900.0)
    said = tmp_path / "said"
    with pytest.raises(FileNotFoundError, match="/1'"):  # who died has no result
        in_ranks(2, tmp_path, alone_in_the_end, values, str(said))
    assert json.loads(said.read_text())[0] == PeerLost.__name__


def locked_while_training(_rank: int, values: dict[str, Any], lock: str) -> tuple[int, bool]:
    """Whether the folder was held during a step."""
    from dflash.drafter_run import DrafterRun
    from dflash.train import rank_main

    held = [False]
    step = DrafterRun._one_step

    def tried(run: DrafterRun) -> None:
        step(run)
        with Path(lock).open(encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                held[0] = True

    DrafterRun._one_step = tried  # type: ignore[method-assign]
    return rank_main(TrainConfig.from_json(values)), held[0]


def refused_at_once(_rank: int, values: dict[str, Any]) -> int:
    from dflash import train

    train.LOCK_PATIENCE_S = 0.1
    return train.rank_main(TrainConfig.from_json(values))


def test_torchrun_has_a_folder_for_itself(inputs: Path, tmp_path: Path) -> None:
    """Held by the first drafter rank; a second start ends on all ranks, with the same words."""
    out = tmp_path / "out"
    values = options(inputs, out, colocated=False, steps=1)
    ended = in_ranks(2, tmp_path, locked_while_training, values, str(out / ".lock"))
    assert ended == [(0, False), (0, True)]

    newer = values | {"steps": 2, "schedule": "constant"}
    with (out / ".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert in_ranks(2, tmp_path, refused_at_once, newer) == [1, 1]
    for rank in range(2):
        said = json.loads((out / "rank-errors" / f"{rank}.json").read_text())
        assert said["message"] == f"Another training run writes to {out}."
        assert "another --out" in said["hint"]
    assert not (out / "step-000002").exists()
