"""Ranks that connect late, fail alone, or leave at different times: nobody waits for ever."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from dflash.errors import DflashError, Interrupted
from dflash.run_plan import Types
from dflash.train_config import TrainConfig
from tests.support.ranks import in_ranks
from tests.support.tiny_runs import losses, make_inputs, options

if TYPE_CHECKING:
    from dflash.interrupt import StopRequest

CONNECT_TAG = 99
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_inputs(tmp_path_factory.mktemp("inputs"))


def connecting_late(rank: int, values: dict[str, Any]) -> int:
    """As over NCCL: the first states between two ranks connect them, and hold both until then."""
    import torch.distributed as dist

    from dflash.feed import STATES_TAG
    from dflash.train import rank_main

    send, receive, connected = dist.isend, dist.irecv, set()

    def connect(peer: int, tag: int) -> None:
        if tag != STATES_TAG or peer in connected:
            return
        connected.add(peer)
        word = torch.zeros(1)
        for first in (True, False):
            if (rank < peer) is first:
                dist.send(word, peer, tag=CONNECT_TAG)
            else:
                dist.recv(word, peer, tag=CONNECT_TAG)

    def isend(tensor: torch.Tensor, peer: int, tag: int) -> Any:
        connect(peer, tag)
        return send(tensor, peer, tag=tag)

    def irecv(tensor: torch.Tensor, peer: int, tag: int) -> Any:
        connect(peer, tag)
        return receive(tensor, peer, tag=tag)

    dist.isend, dist.irecv = isend, irecv  # type: ignore[assignment]
    return rank_main(TrainConfig.from_json(values))


@pytest.mark.parametrize(("targets", "drafters"), [(3, 1), (3, 2)])
def test_ranks_that_connect_at_their_first_transfer_get_there(
    inputs: Path, tmp_path: Path, targets: int, drafters: int
) -> None:
    """A target's first micro-batch may need a credit already, which no receive may wait before."""
    out = tmp_path / "out"
    split = {"colocated": False, "targets": targets, "drafters": drafters, "ring": 1}
    values = options(inputs, out, steps=3, timeout_s=60.0, **split)
    assert set(in_ranks(targets + drafters, tmp_path, connecting_late, values)) == {0}
    assert sorted(losses(out)) == [1, 2, 3]


def leaving_alone(rank: int, values: dict[str, Any]) -> int:
    """The first drafter fails after its step, before it says whether to go on."""
    from dflash.drafter_run import DrafterRun
    from dflash.train import rank_main

    vote = DrafterRun._asked_to_end

    def fail(run: DrafterRun, stop: StopRequest, elapsed: float) -> str:
        if run.role.leads and run.step == 2:
            raise DflashError("the third step is too much")
        return vote(run, stop, elapsed)

    DrafterRun._asked_to_end = fail  # type: ignore[method-assign]
    return rank_main(TrainConfig.from_json(values))


def test_who_loses_a_rank_says_so_and_is_not_taken_for_the_cause(
    inputs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    values = options(inputs, out, colocated=False, drafters=2)
    assert in_ranks(3, tmp_path, leaving_alone, values) == [1, 1, 1]
    said = [json.loads((out / "rank-errors" / f"{rank}.json").read_text()) for rank in range(3)]
    assert said[1]["message"] == "the third step is too much"
    assert [one["kind"] for one in said] == ["PeerLost", "DflashError", "PeerLost"]


def on_a_full_disk(rank: int, values: dict[str, Any], name: str) -> int:
    import dflash.checkpoint
    import dflash.run_record
    from dflash.train import rank_main

    def full(path: Path, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    module = dflash.checkpoint if name == "write_text" else dflash.run_record
    setattr(module, name, full)
    return rank_main(TrainConfig.from_json(values))


@pytest.mark.parametrize(
    ("name", "says"),
    [("write_text", "Cannot save .*latest: .*No space left"), ("write_json", "No space left")],
)
def test_a_disk_that_is_full_behind_the_checkpoint_is_told(
    inputs: Path, tmp_path: Path, name: str, says: str
) -> None:
    """The pointer and the summary are written after it; it is whole all the same."""
    out = tmp_path / "out"
    values = options(inputs, out, colocated=False, steps=1)
    assert in_ranks(2, tmp_path, on_a_full_disk, values, name)[1] == 1
    said = json.loads((out / "rank-errors" / "1.json").read_text())
    assert re.search(says, said["message"])
    assert (out / "step-000001" / "provenance.json").is_file()


def asked_alone(rank: int, values: dict[str, Any], folder: str) -> bool:
    """Only the second drafter gets the signal; whether all is saved and sent when it leaves."""
    import dflash.run_record
    from dflash.drafter_run import DrafterRun
    from dflash.train import run_rank
    from dflash.upload import Uploader

    gone, save, vote = Path(folder) / "gone", dflash.run_record.save_checkpoint, DrafterRun.run
    config = TrainConfig.from_json(values)

    def linger() -> None:
        deadline = time.monotonic() + 0.5
        while not gone.exists() and time.monotonic() < deadline:  # it must not go before
            time.sleep(0.01)

    def slow(*args: Any, **kwargs: Any) -> Path:
        linger()
        return save(*args, **kwargs)

    def upload(_uploader: Uploader, checkpoint: Path) -> None:
        linger()
        (Path(folder) / f"sent-{checkpoint.name}").touch()

    dflash.run_record.save_checkpoint = slow
    Uploader._upload = upload  # type: ignore[method-assign]

    def asked(run: DrafterRun, stop: StopRequest) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        vote(run, stop)

    if rank == 1:
        DrafterRun.run = asked  # type: ignore[method-assign]
    from dflash.ranks import join_group

    with pytest.raises(Interrupted):
        run_rank(config, join_group(config, cuda=False))
    saved = (Path(config.out) / "step-000001").is_dir()
    sent = (Path(folder) / "sent-step-000001").exists()
    gone.touch()
    return saved and sent


def test_no_rank_leaves_before_the_last_checkpoint_is_there_and_sent(
    inputs: Path, tmp_path: Path
) -> None:
    """torchrun kills the others when one ends with an exit code of its own."""
    values = options(inputs, tmp_path / "out", drafters=2, steps=9, upload="s3://none/x")
    assert in_ranks(2, tmp_path, asked_alone, values, str(tmp_path)) == [True, True]


def test_a_gpu_for_each_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    config = TrainConfig.from_json({"target": "t", "data": "d", "out": "o"})
    with pytest.raises(DflashError, match=r"Process 3 of this host .* there are 2") as caught:
        Types.of(config)
    assert "--colocated" in caught.value.hint


@pytest.mark.parametrize(("asked", "share"), [(92.0, 0.5), (500.0, 1.0), (None, None)])
def test_a_rank_takes_no_more_of_its_gpu_than_allowed(
    asked: float | None, share: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[float] = []
    card = SimpleNamespace(total_memory=184 * 2**30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _device: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: card)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda part, _device: taken.append(part)
    )
    values = {"target": "t", "data": "d", "out": "o", "gpu_memory": asked}
    types = Types.of(TrainConfig.from_json(values))
    assert taken == ([] if share is None else [share])
    assert types.drafter == torch.bfloat16  # what `auto` is on a GPU


HANGING = """
import sys, threading
import dflash.train
threading.Thread(target=threading.Event().wait).start()  # an orderly end would wait for it

def failing(config):
    raise RuntimeError("unheard of")

dflash.train.rank_main = failing if sys.argv[1] == "error" else lambda config: 75
dflash.train.whole_process(None)
"""


@pytest.mark.parametrize(("how", "code"), [("error", 1), ("signal", 75)])
def test_a_failed_rank_waits_for_nothing(how: str, code: int) -> None:
    found = subprocess.run(
        [sys.executable, "-c", HANGING, how], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True,
        check=False, timeout=100,
    )  # fmt: skip
    assert found.returncode == code
    assert ("RuntimeError: unheard of" in found.stderr) is (how == "error")


def with_slow_targets(rank: int, values: dict[str, Any], seconds: float) -> int:
    """Targets that take a known time for a micro-batch, most of which costs no processor."""
    import dflash.feed
    from dflash.train import rank_main

    states = dflash.feed.packed_states

    def slow(*args: Any) -> None:
        states(*args)
        time.sleep(seconds)

    dflash.feed.packed_states = slow
    return rank_main(TrainConfig.from_json(values))


def test_no_target_waits_for_another_where_several_feed_one_drafter(
    inputs: Path, tmp_path: Path
) -> None:
    """With as many buffers as one target fills, the third of three would always wait."""
    out = tmp_path / "out"
    split = {"colocated": False, "targets": 3, "drafters": 1, "micro_batches": 1}
    values = options(inputs, out, steps=26, save_every=100, eval_docs=0, eval_prompts=0, **split)
    assert set(in_ranks(4, tmp_path, with_slow_targets, values, 0.5)) == {0}
    rates = json.loads((out / "train.json").read_text())["rates"]
    assert rates["slower"] == "target"
    assert rates["of_bound"] > 0.85, rates
    assert rates["target_waits"] < 0.15, rates
