"""Faults between us and a host: whatever happens, one start and a known outcome each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from remote import Host, HostFenceHeld, HostKeyChanged, JobSpec, JobStatus, RemoteError, Unreachable
from tests.faults.field import Field, silence
from tests.support.clocks import stepping_clock
from tests.support.deadline import wait_for
from tests.support.sshd import make_key, running_sshd

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.link import Way


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong."""

    name: str
    run: Callable[[Field], None]
    seconds: int
    """About how long its smallest form takes."""
    far: bool
    """Needs a machine with an address of its own."""


FAULTS: list[Fault] = []


def fault(
    name: str, seconds: int, *, far: bool = False
) -> Callable[[Callable[[Field], None]], None]:
    def add(run: Callable[[Field], None]) -> None:
        FAULTS.append(Fault(name, run, seconds, far))

    return add


def _break_launches(field: Field, how: str, times: int) -> None:
    link = field.link()
    host = field.host(field.transport(link, connect_s=5, silence_s=2))
    field.one(host)
    link.break_after("up", 1 << 40)
    probe = field.spec()
    field.launch(host, probe)
    sizes = dict(link.passed)
    field.settle(host, probe)
    for number in range(times):
        way: Way = field.chance.choice(("up", "down"))
        # The last bytes of each direction are where an answer is lost after the deed.
        late = number % 2 == 0
        low = sizes[way] - 200 if late else 1
        at = field.chance.randint(low, sizes[way])
        spec = field.spec(holds=number % 3 == 0, code=number % 4)
        link.break_after(way, at, how=how)  # type: ignore[arg-type]
        field.launch_once(host, spec)
        link.mend()
        link.cut()
        field.launch(host, spec)
        field.settle(host, spec)
    field.tally.said = f"a launch is {sizes['up']} bytes up, {sizes['down']} down"


@fault("link cut at a random byte of the launch exchange", 8)
def cut_launch(field: Field) -> None:
    _break_launches(field, "cut", 60 if field.scale > 1 else 4)


@fault("link silent from a random byte of the launch exchange on", 8)
def freeze_launch(field: Field) -> None:
    _break_launches(field, "freeze", 20 if field.scale > 1 else 2)


@fault("connection killed at the server's end during launches", 8)
def sessions_killed(field: Field) -> None:
    link = field.link()
    host = field.host(field.transport(link))
    for number in range(6 * field.scale):
        spec = field.spec(code=number % 3)
        thread = threading.Thread(target=field.launch_once, args=(host, spec))
        thread.start()
        thread.join(field.chance.random() * 0.8)
        field.near.cut()
        thread.join()
        field.launch(host, spec)
        field.settle(host, spec)


@fault("packets dropped while a job runs, then let through", 12, far=True)
def black_hole(field: Field) -> None:
    assert field.machine is not None
    transport = field.transport()
    host = field.host(transport)
    noticed = []
    for _ in range(field.scale):
        spec = field.spec(holds=True, code=3)
        field.launch(host, spec)
        threading.Timer(0.3, field.machine.drop).start()
        noticed.append(silence(transport))
        field.release(spec)  # it ends while nobody can see it
        field.machine.heal()
        field.settle(host, spec)
    assert max(noticed) < 40, noticed  # not the command's own 120
    field.tally.said = f"noticed after {min(noticed):.1f}-{max(noticed):.1f} s"


@fault("an outage of 3 s that TCP survives", 6, far=True)
def short_outage(field: Field) -> None:
    assert field.machine is not None
    host = field.host(field.transport())
    for _ in range(field.scale):
        field.one(host)
        spec = field.spec()
        field.machine.unplug()
        threading.Timer(3, field.machine.heal).start()
        field.launch_once(host, spec)
        field.launch(host, spec)
        field.settle(host, spec)


@fault("5 % of all packets lost", 8, far=True)
def loss(field: Field) -> None:
    assert field.machine is not None
    field.machine.lose(0.025)  # each way
    host = field.host(field.transport())
    for number in range(5 * field.scale):
        spec = field.spec(code=number % 2)
        field.launch_once(host, spec)
        field.launch(host, spec)
        field.settle(host, spec)
    field.machine.heal()


@fault("5 s of latency", 10)
def latency(field: Field) -> None:
    host = field.host(field.transport(field.link(delay_s=2.5 if field.scale > 1 else 0.5)))
    spec = field.spec()
    began = time.monotonic()
    assert field.launch_once(host, spec) is not None, "slow, but no failure"
    took = time.monotonic() - began
    field.settle(host, spec)
    field.tally.said = f"the first launch, login included, took {took:.0f} s"
    assert field.tally.unknown == 0


@fault("sshd killed while jobs run, and started again", 6, far=True)
def sshd_killed(field: Field) -> None:
    assert field.machine is not None
    host = field.host(field.transport())
    for _ in range(2 * field.scale):
        specs = [field.spec(holds=True, code=code) for code in range(2)]
        for spec in specs:
            field.launch(host, spec)
        field.machine.kill_sshd(listener=True)
        field.release(specs[0])
        _no_answer(field, host)
        field.machine.start_sshd()
        for spec in specs:
            field.settle(host, spec)


@fault("jump host dies while a job runs", 6)
def jump_host(field: Field) -> None:
    with running_sshd(field.folder / "jump") as jump:
        config = field.folder / "jump-config"
        config.write_text(
            f"Host 127.0.0.1\n  ProxyJump {jump.user}@localhost:{jump.port}\n"
            f"Host localhost\n  ProxyJump none\n"
            f"Host *\n  IdentityFile {field.near.folder}/client_key\n"
            f"  IdentityFile {jump.folder}/client_key\n"
            f"  UserKnownHostsFile {field.folder}/jump-known\n"
        )
        (field.folder / "jump-known").write_text(f"[localhost]:{jump.port} {jump.host_key}\n")
        link = field.link()
        transport = field.transport(link)
        transport._config = config
        host = field.host(transport)
        for _ in range(2 * field.scale):
            spec = field.spec(holds=True)
            field.launch(host, spec)
            jump.stop()
            field.release(spec)
            _no_answer(field, host)
            jump.start()
            field.settle(host, spec)
        transport.close()


@fault("a server that allows one session and few newcomers; 30 launches at once", 15)
def small_server(field: Field) -> None:
    with (
        running_sshd(field.folder / "small", options="MaxSessions 1\nMaxStartups 2:50:4") as small,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("remote.ssh.CLOSING_S", 30.0)  # a busy server is slow to close a session
        field.near = small
        link = field.link()
        host = field.host(field.transport(link))
        specs = [field.spec() for _ in range(15 * min(field.scale, 2))]
        threads = [threading.Thread(target=field.launch_once, args=(host, spec)) for spec in specs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for spec in specs:
            field.launch(host, spec)
            field.settle(host, spec)
        field.tally.said = f"{link.accepted} connection(s)"
        assert link.accepted <= 2
        host.close()


@fault("host key changed while a job runs", 5, far=True)
def other_key(field: Field) -> None:
    assert field.machine is not None
    host = field.host(field.transport())
    spec = field.spec(holds=True)
    field.launch(host, spec)
    machine, old = field.machine, field.machine.host_key
    machine.kill_sshd(listener=True)
    for name in ("host_key", "host_key.pub"):
        (machine.folder / name).unlink()
    new = make_key(machine.folder / "host_key")
    machine.start_sshd()
    let_in = (machine.folder / "sshd.log").read_text(errors="replace").count("Accepted")
    _no_answer(field, host)
    stranger = field.host(field.transport())
    for ask in (lambda: stranger.launch(spec), lambda: stranger.stop(spec.attempt, grace_s=1)):
        with pytest.raises(HostKeyChanged) as refused:
            ask()
        assert (refused.value.expected, refused.value.found) == (old, new)
        field.tally.unknown += 1
    log = (machine.folder / "sshd.log").read_text(errors="replace")
    assert log.count("Accepted") == let_in, "nothing was sent"
    machine.host_key = new
    adopted = field.host(field.transport())
    field.settle(adopted, spec)
    field.tally.said = "nothing sent to the stranger; adopted after the new key was pinned"


def _no_answer(field: Field, host: Host) -> None:
    with pytest.raises(Unreachable):
        host.poll([])
    field.tally.unknown += 1


@fault("two laptops with a database each launch and stop the same task", 12)
def two_clients(field: Field) -> None:
    link = field.link()
    for turn in range(4 * field.scale):
        hosts = [field.host(field.transport(link)) for _ in range(2)]
        specs = [field.spec(holds=True, task=f"shared-{turn}") for _ in range(2)]
        won: list[int] = []
        held: list[str] = []

        def go(who: int, hosts=hosts, specs=specs, won=won, held=held) -> None:
            time.sleep(field.chance.random() * 0.1)
            try:
                hosts[who].launch(specs[who])
                won.append(who)
            except HostFenceHeld as error:
                held.append(error.attempt)

        threads = [threading.Thread(target=go, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, f"both won: {won}"
        winner = specs[won[0]]
        assert held == [winner.attempt], "the other one is told whom to follow"
        field.tally.attempts -= 1  # the refused attempt never came to be
        # The one who lost adopts the attempt and stops it, while the winner stops it too.
        stops = [
            threading.Thread(target=host.stop, args=(winner.attempt,), kwargs={"grace_s": 1})
            for host in hosts
        ]
        for thread in stops:
            thread.start()
        for thread in stops:
            thread.join()
        field.settle(hosts[0], winner)
        assert field.status(hosts[1], winner) == field.status(hosts[0], winner)
        assert field.began(specs[1 - won[0]]) == 0


@fault("60 launchers of one attempt at once", 20)
def sixty_launchers(field: Field) -> None:
    link = field.link()
    hosts = [field.host(field.transport(link)) for _ in range(6)]
    count = 60 if field.scale > 1 else 24
    for _ in range(max(1, field.scale // 2)):
        spec = field.spec(code=5)
        answers: list[JobStatus] = []

        def go(host: Host, spec=spec, answers=answers) -> None:
            try:
                answers.append(host.launch(spec))
            except Unreachable:
                field.tally.unknown += 1

        threads = [threading.Thread(target=go, args=(hosts[n % 6],)) for n in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({answer.pid for answer in answers if answer.pid}) <= 1
        field.settle(hosts[0], spec)


@fault("the launcher's process killed -9 at a random moment", 15)
def launcher_killed(field: Field) -> None:
    link = field.link()
    host = field.host(field.transport(link))
    field.one(host)
    program = (
        "import sys, json\n"
        "from pathlib import Path\n"
        "from remote import Host, HostTarget, JobSpec\n"
        "from remote.ssh import SshTransport\n"
        "t, s, root, config = json.loads(sys.argv[1])\n"
        "ssh = SshTransport(HostTarget(**t), config=Path(config))\n"
        "h = Host(ssh, root=root, workspace_id='w')\n"
        "print('ready', flush=True)\n"
        "h.launch(JobSpec(**{**s, 'argv': tuple(s['argv'])}))\n"
    )
    for number in range(4 * field.scale):
        spec = field.spec(code=number % 3)
        target = {
            "kind": "ssh", "address": "127.0.0.1", "user": field.near.user, "port": link.port,
            "root": "", "host_key": field.near.host_key,
        }  # fmt: skip
        body = {
            "attempt": spec.attempt, "task": spec.task, "generation": 1, "argv": list(spec.argv),
            "grace_s": 2.0,
        }  # fmt: skip
        given = json.dumps([target, body, host.root, str(field.near.client_config)])
        with subprocess.Popen(
            [sys.executable, "-c", program, given], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as child:  # fmt: skip
            assert child.stdout is not None
            child.stdout.readline()
            try:
                child.wait(field.chance.random() * 1.5)
            except subprocess.TimeoutExpired:
                child.kill()
                field.tally.unknown += 1
        field.launch(host, spec)
        field.settle(host, spec)


@fault("clocks of host and laptop stepped by hours, back and forth, while jobs run", 10)
def clocks(field: Field) -> None:
    hour = 3600.0
    link, theirs = field.link(), field.folder / "clock"
    theirs.write_text("0")
    with stepping_clock() as ours:
        host = field.host(field.transport(link), clock_file=str(theirs))
        for number in range(2 * field.scale):
            long = field.spec(holds=True, code=3, time_limit_s=hour)
            short = field.spec(holds=True, time_limit_s=2.0)
            for spec in (long, short):
                field.launch(host, spec)
                # Far beyond the longer limit, or far before the start.
                theirs.write_text(str(hour * field.chance.choice((-1, 1)) * (2 + 40 * number)))
                ours(hour * field.chance.choice((-1, 1)) * (2 + 40 * number))
                link.cut()  # and a login under that clock
                assert field.status(host, spec).state in ("running", "exited")
            found = wait_for(lambda short=short: _limited(field, host, short), what="its limit")
            assert found, "a clock that went back does not prolong it"
            assert field.status(host, long).state == "running", "nor does one ahead end it"
            for spec in (long, short):
                field.launch(host, spec)
                field.settle(host, spec)
    field.tally.said = "time limits kept by the monotonic clock"


def _limited(field: Field, host: Host, spec: JobSpec) -> bool:
    status = field.status(host, spec)
    assert status.state == "running" or status.cls == "time_limit", status
    return status.state == "exited"


@fault("the supervisor killed -9 while its job runs", 7, far=True)
def supervisor_killed(field: Field) -> None:
    assert field.machine is not None
    host = field.host(field.transport())
    for _ in range(2 * field.scale):
        spec = field.spec(holds=True)
        status = field.launch(host, spec)
        wait_for(lambda spec=spec: field.began(spec), what="the payload")
        assert status.pid is not None
        for pid in field.machine.processes():
            words = (f"/proc/{pid}/cmdline", f"/proc/{pid}/stat")
            if b"supervise" in _read(words[0]) and spec.attempt.encode() in _read(words[0]):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda spec=spec: field.status(host, spec).state == "lost", what="its death")
        assert field.status(host, spec).cls == "lost_supervisor_died"
        report = host.stop(spec.attempt, grace_s=1)
        assert report.state == "stopped", report
        assert field.launch(host, spec).state == "lost", "it is never started again"
        field.settle(host, spec)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read()
    except OSError:
        return b""


@fault("the host rebooted while jobs run", 7, far=True)
def reboot(field: Field) -> None:
    assert field.machine is not None
    host = field.host(field.transport())
    for _ in range(field.scale):
        spec, done = field.spec(holds=True), field.spec(code=4)
        field.launch(host, spec)
        field.launch(host, done)
        field.settle(host, done)
        epoch = host.identity().epoch
        field.machine.reboot()
        found = field.status(host, spec)
        assert (found.state, found.cls) == ("lost", "lost_reboot"), found
        assert field.status(host, done).exit_code == 4, "what had ended keeps its outcome"
        assert host.identity().epoch != epoch
        assert field.launch(host, spec).state == "lost", "it is never started again"
        field.settle(host, spec)


@fault("power off in the middle of a launch", 12, far=True)
def power_off(field: Field) -> None:
    assert field.machine is not None
    host = field.host(field.transport(connect_s=3, silence_s=2))
    field.one(host)
    for _ in range(2 * field.scale):
        spec = field.spec()
        thread = threading.Thread(target=field.launch_once, args=(host, spec))
        thread.start()
        thread.join(field.chance.random() * 0.6)
        field.machine.power_off()
        thread.join()
        field.machine.boot()
        try:
            field.launch(host, spec)
        except RemoteError as error:  # the launch was torn: it is told, and nothing runs
            field.tally.outcomes[type(error).__name__] += 1
            assert field.began(spec) == 0
            continue
        field.settle(host, spec)
