"""Machines of their own on this one: a network namespace each, with a real sshd inside.

Each has its own address, processes, host name, /dev/shm and boot id, and can lose packets, its
link, its sshd or its power. Needs root, iproute2 and iptables; `why_not` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.deadline import wait_for
from tests.support.sshd import make_key, sshd_program

if TYPE_CHECKING:
    from collections.abc import Sequence

PORT = 2200
INIT = """\
set -e
mount --make-rprivate /
mount -t tmpfs -o size=64m tmpfs /dev/shm
mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id
hostname {name}
ip link set lo up
{hide}
{sshd} -f {folder}/sshd_config -E {folder}/sshd.log
while :; do sleep 1000; done
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def why_not() -> str:
    """Why no such machine can be made here; empty when it can."""
    if os.getuid() != 0:
        return "network namespaces need root"
    for program, package in (
        ("ip", "iproute2"),
        ("iptables", "iptables"),
        ("unshare", "util-linux"),
    ):
        if shutil.which(program) is None:
            return f"`{program}` is missing: install {package}"
    name = f"rbtry{os.getpid()}"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"the kernel refuses a network namespace: {error.stderr.decode().strip()}"
    try:
        done = subprocess.run(
            ["ip", "netns", "exec", name, "sh", "-c",
             "iptables -A INPUT -j DROP && unshare -mpuf true"],
            capture_output=True, check=False,
        )  # fmt: skip
    finally:
        ip("netns", "del", name)
    return f"the kernel refuses: {done.stderr.decode().strip()}" if done.returncode else ""


def require() -> None:
    """Skips loudly where the kernel allows none; in CI, what can be installed must be."""
    reason = why_not()
    if not reason:
        return
    if os.environ.get("CI") and "missing" in reason:
        pytest.fail(f"no machines of their own: {reason}")
    pytest.skip(f"NO NETWORK NAMESPACES, so packets cannot be dropped here: {reason}")


@dataclass
class Machine:
    """One namespace and what runs in it. Shares the disk with us, nothing else."""

    folder: Path
    number: int
    user: str = "root"
    host_key: str = ""
    hide: str = ""
    init: subprocess.Popen[bytes] | None = None
    name: str = field(init=False)
    outside: str = field(init=False)
    gateway: str = field(init=False)
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"rb{os.getpid()}x{self.number}"
        self.outside = f"v{self.name}"[:15]
        # A /30 of the range kept for benchmarks: nobody's real address is hidden by it.
        taken = subprocess.run(["ip", "-4", "addr"], capture_output=True, text=True, check=True)
        for place in (*range(os.getpid() % 126, 126), *range(126)):
            net, base = f"198.{18 + place % 2}.{self.number}", 4 * (place // 2)
            self.gateway, self.address = f"{net}.{base + 1}", f"{net}.{base + 2}"
            if f" {self.gateway}/30 " not in taken.stdout:  # nor that of other tests
                break

    @property
    def client_config(self) -> Path:
        return self.folder / "client_config"

    def make(self, *, options: str = "", hidden: Sequence[Path] = ()) -> None:
        """`options`: lines of sshd's configuration that outweigh ours. `hidden`: emptied files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "empty").touch()
        self.hide = "\n".join(f"mount --bind {self.folder}/empty {path}" for path in hidden)
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.host_key = make_key(self.folder / "host_key")
        (self.folder / "authorized_keys").write_text(make_key(self.folder / "client_key") + "\n")
        (self.folder / "home").mkdir()
        (self.folder / "sshd_config").write_text(
            f"{options}\nPort {PORT}\nHostKey {self.folder}/host_key\n"
            f"PidFile none\nAuthorizedKeysFile {self.folder}/authorized_keys\nStrictModes no\n"
            "UsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            f"SetEnv HOME={self.folder}/home PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin\n"
            "PermitRootLogin prohibit-password\nMaxStartups 100\nUseDNS no\n"
        )
        self.client_config.write_text(
            f"Host *\n  IdentityFile {self.folder}/client_key\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {self.folder}/known_hosts\n  GlobalKnownHostsFile none\n"
        )
        ip("netns", "add", self.name)
        inside = f"c{self.name}"[:15]
        ip("link", "add", self.outside, "type", "veth", "peer", "name", inside, "netns", self.name)
        ip("addr", "add", f"{self.gateway}/30", "dev", self.outside)
        ip("link", "set", self.outside, "up")
        ip("-n", self.name, "addr", "add", f"{self.address}/30", "dev", inside)
        ip("-n", self.name, "link", "set", inside, "up")
        self.boot()

    def boot(self) -> None:
        """Power on: a new boot id, an empty /dev/shm, no process of before."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")
        script = INIT.format(
            folder=self.folder, name=self.name, sshd=sshd_program(), hide=self.hide
        )
        log = (self.folder / "init.log").open("ab")
        with log:
            self.init = subprocess.Popen(
                ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "--pid", "--fork",
                 "--kill-child", "--mount-proc", "sh", "-c", script],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for(self.accepts, what=f"{self.name} to boot")

    def accepts(self) -> bool:
        probe = f"exec 3<>/dev/tcp/{self.address}/{PORT} && head -c 4 <&3"
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(
                ["bash", "-c", probe], capture_output=True, timeout=2, check=False
            )
            return done.stdout == b"SSH-"
        return False

    def power_off(self) -> None:
        """Every process of it is gone at once."""
        if self.init is not None:
            self.init.kill()  # --kill-child takes its pid 1, and that takes all the others
            self.init.wait(10)
            self.init = None
            wait_for(lambda: not self.processes(), what=f"{self.name} to be off")

    def reboot(self) -> None:
        self.power_off()
        self.boot()

    def processes(self) -> dict[int, str]:
        """What runs in it: pid here -> command."""
        done = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        found = {}
        for word in done.stdout.split():
            with suppress(OSError):
                found[int(word)] = Path(f"/proc/{word}/comm").read_text().strip()
        return found

    def kill_sshd(self, *, listener: bool) -> None:
        """Its connections, and with `listener` all of it."""
        for pid, comm in self.processes().items():
            if comm.startswith("sshd"):
                with suppress(OSError):
                    title = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if listener or b"[listener]" not in title:
                        os.kill(pid, signal.SIGKILL)

    def start_sshd(self) -> None:
        inside = next(pid for pid, comm in self.processes().items() if comm == "sleep")
        subprocess.run(
            ["nsenter", "-t", str(inside), "-m", "-u", "-n", "-p", sshd_program(), "-f",
             str(self.folder / "sshd_config"), "-E", str(self.folder / "sshd.log")],
            check=True, capture_output=True,
        )  # fmt: skip
        wait_for(self.accepts, what=f"the sshd of {self.name}")

    def filter(self, *rule: str) -> None:
        """An iptables rule inside, both ways; without words, none."""
        for way in ("INPUT", "OUTPUT"):
            words = ["-A", way, *rule] if rule else ["-F", way]
            subprocess.run(
                ["ip", "netns", "exec", self.name, "iptables", *words],
                check=True, capture_output=True,
            )  # fmt: skip

    def drop(self) -> None:
        """A black hole: packets vanish, nothing is reset."""
        self.filter("-j", "DROP")

    def lose(self, share: float) -> None:
        self.filter(
            "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP"
        )

    def heal(self) -> None:
        self.filter()
        ip("link", "set", self.outside, "up")

    def unplug(self) -> None:
        ip("link", "set", self.outside, "down")

    def remove(self) -> None:
        self.power_off()
        with suppress(subprocess.CalledProcessError):
            ip("netns", "del", self.name)
        with suppress(subprocess.CalledProcessError):
            ip("link", "del", self.outside)
