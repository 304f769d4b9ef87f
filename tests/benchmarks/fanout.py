"""How long one round over many SSH hosts takes, and what a dead one adds.

    PYTHONPATH=. python3 tests/benchmarks/fanout.py [--hosts 50] [--rounds 10]

Each host is a port of a real sshd on this machine (one listens on 16 at most, so there are a few),
with a job root, a connection and a running job of its own. Rounds: one after another; at once; at
once with one more host whose packets vanish.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from remote import Host, HostTarget, JobSpec
from remote.fanout import Answer, Fanout
from remote.ssh import SshTransport
from tests.support.link import Link
from tests.support.ports import free_port
from tests.support.sshd import Sshd, running_sshd

PORTS = 15


def hosts(folder: Path, sshd: Sshd, ports: list[int]) -> list[Host]:
    """A host a port, each with a job that runs."""
    made = []
    for number, port in enumerate(ports):
        target = HostTarget(
            kind="ssh", address="127.0.0.1", user=sshd.user, port=port, root="",
            host_key=sshd.host_key,
        )  # fmt: skip
        transport = SshTransport(target, config=sshd.client_config)
        host = Host(transport, root=str(folder / f"host-{number}"), workspace_id="w")
        host.launch(
            JobSpec(attempt="a1", task="t", generation=1, argv=("sleep", "3600"), grace_s=0.2)
        )
        made.append(host)
    return made


def round_s(fanout: Fanout, wanted: dict[str, tuple[Host, list[str]]], expected: int) -> float:
    """Seconds until all who live have answered."""
    began = time.monotonic()
    heard: set[str] = set()
    while len(heard) < expected:
        for name, answer in fanout.poll(wanted).items():
            if isinstance(answer, Answer):
                assert answer.statuses["a1"].state == "running"
                heard.add(name)
        wanted = {name: pair for name, pair in wanted.items() if name not in heard}
    return time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="runbook-fanout-"))
    with ExitStack() as stack:
        made = []
        for first in range(0, given.hosts, PORTS):
            ports = [free_port() for _ in range(min(PORTS, given.hosts - first))]
            options = "".join(f"Port {port}\n" for port in ports)
            sshd = stack.enter_context(running_sshd(folder / f"sshd-{first}", options=options))
            made += hosts(folder / str(first), sshd, ports)
        link = Link(sshd.port)
        (dead,) = hosts(folder / "dead", sshd, [link.port])
        try:
            report(made, dead, link, given.rounds)
        finally:
            link.thaw()
            for host in [*made, dead]:
                host.stop("a1", grace_s=0.2)
                host.close()
            link.close()
    shutil.rmtree(folder)
    return 0


def report(made: list[Host], dead: Host, link: Link, rounds: int) -> None:
    wanted = {str(number): (host, ["a1"]) for number, host in enumerate(made)}
    single = []
    for _ in range(rounds):
        began = time.monotonic()
        made[0].poll(["a1"])
        single.append(time.monotonic() - began)
    tell("one host", single)
    began = time.monotonic()
    for host in made:
        host.poll(["a1"])
    tell(f"{len(made)} hosts, one after another", [time.monotonic() - began])
    fanout = Fanout()
    tell(f"{len(made)} hosts at once", [round_s(fanout, wanted, len(made)) for _ in range(rounds)])
    link.freeze()
    with_dead = {**wanted, "dead": (dead, ["a1"])}
    times = [round_s(fanout, with_dead, len(made)) for _ in range(rounds)]
    tell(f"{len(made)} hosts at once, and one more that is dead", times)


def tell(name: str, times: list[float]) -> None:
    print(f"{name}: median {statistics.median(times):.2f} s, longest {max(times):.2f} s")


if __name__ == "__main__":
    sys.exit(main())
