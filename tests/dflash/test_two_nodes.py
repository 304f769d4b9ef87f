"""Two nodes under torchrun, here both on this host: one runs the target, the other trains."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dflash.run_record import METRICS
from dflash.train import train
from dflash.train_config import TrainConfig
from tests.support.ports import free_port
from tests.support.tiny_runs import losses, make_inputs, options

if TYPE_CHECKING:
    from collections.abc import Iterator

DEADLINE_S = 90


class Nodes:
    """Two torchrun agents that meet on loopback, each with one rank."""

    def __init__(self, config: Path) -> None:
        port = free_port()
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        self.logs = [config.with_suffix(f".{node}.err") for node in range(2)]
        self.agents = []
        for node, log in enumerate(self.logs):
            argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2",
                    "--node-rank", str(node), "--nproc-per-node", "1", "--master-addr",
                    "127.0.0.1", "--master-port", str(port), "-m", "dflash", "train",
                    "--config", str(config)]  # fmt: skip
            with log.open("wb") as err:
                self.agents.append(subprocess.Popen(
                    argv, stdout=err, stderr=err, env=environment, cwd=Path(__file__).parents[2]
                ))  # fmt: skip

    def codes(self) -> list[int]:
        return [agent.wait(timeout=DEADLINE_S) for agent in self.agents]

    def rank(self, node: int) -> int:
        """The process of this node's rank."""
        agent = self.agents[node].pid
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        return int(children[0])

    def said(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self.logs)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Nodes] = []

    def begin(values: dict[str, Any]) -> Nodes:
        config = tmp_path / f"config-{len(started)}.json"
        config.write_text(json.dumps(values))
        started.append(Nodes(config))
        return started[-1]

    yield begin
    for nodes in started:
        for agent in nodes.agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(timeout=DEADLINE_S)


def test_two_nodes_train_what_one_process_does_and_end_when_one_is_gone(
    tmp_path: Path, start: Any
) -> None:
    """Killed on one node both end, and the same command on both goes on from the checkpoint."""
    inputs = make_inputs(tmp_path / "inputs")
    changes = {"steps": 40, "save_every": 5}
    train(TrainConfig.from_json(options(inputs, tmp_path / "alone", **changes)))
    out = tmp_path / "out"
    values = options(inputs, out, colocated=False, **changes)
    nodes = start(values)
    deadline = time.monotonic() + DEADLINE_S
    while not list(out.glob("step-*")):
        assert time.monotonic() < deadline, nodes.said()[-3000:]
        assert all(agent.poll() is None for agent in nodes.agents), nodes.said()[-3000:]
        time.sleep(0.01)
    os.kill(nodes.rank(0), signal.SIGKILL)
    assert all(nodes.codes()), nodes.said()[-3000:]
    assert "dflash train, rank 1 (drafter): " in nodes.logs[1].read_text()
    assert max(losses(out)) < 40, "it was over before the kill"
    nodes = start(values)
    assert nodes.codes() == [0, 0], nodes.said()[-3000:]
    assert (out / METRICS).is_file()
    assert losses(out) == losses(tmp_path / "alone")
