"""A real sshd on loopback with throwaway keys, for the account that runs the tests."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.deadline import wait_for
from tests.support.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass
class Sshd:
    """A running server, and what a client needs to trust it and be let in."""

    folder: Path
    port: int
    user: str
    host_key: str
    client_config: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return (self.folder / "sshd.log").read_text(errors="replace")

    def start(self) -> None:
        log = (self.folder / "sshd.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [sshd_program(), "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_for(self.accepts, what="sshd to listen")

    def accepts(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def sessions(self) -> list[int]:
        """The server's processes that each serve one connection."""
        assert self.process is not None
        done = subprocess.run(
            ["ps", "--ppid", str(self.process.pid), "-o", "pid="],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return [int(word) for word in done.stdout.split()]

    def cut(self) -> None:
        """Kill every connection at the server's end; what runs on the host goes on."""
        for pid in self.sessions():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self.cut()
            self.process.terminate()
            self.process.wait(10)
            self.process = None


def sshd_program() -> str:
    found = shutil.which("sshd", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("there is no sshd: install openssh-server")
        pytest.skip("there is no sshd: install openssh-server")
    return found


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> str:
    """A new key pair; its public half as `TYPE BASE64`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "", "-f", str(path)], check=True
    )
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@contextmanager
def running_agent(place: Path) -> Iterator[None]:
    """An ssh-agent without keys that listens there."""
    process = subprocess.Popen(["ssh-agent", "-D", "-a", place], stdout=subprocess.DEVNULL)

    def listens() -> bool:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.connect(str(place))
            return True
        return False

    try:
        wait_for(listens, what="the agent")
        yield
    finally:
        process.terminate()
        process.wait(10)


def know(server: Sshd, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home in `folder` whose ssh configuration is the server's client's; and no agent."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text(server.client_config.read_text())
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    # OpenSSH reads the home of the account, not $HOME.
    wrapper = folder / "bin" / "ssh"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {server.client_config} "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")


@contextmanager
def running_sshd(
    folder: Path, *, host_key_kind: str = "ed25519", options: str = ""
) -> Iterator[Sshd]:
    """`options`: lines of configuration that outweigh ours."""
    program = sshd_program()
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:  # its privilege separation wants this place; packages make it at boot
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    host_key = make_key(folder / "host_key", host_key_kind)
    (folder / "authorized_keys").write_text(make_key(folder / "client_key") + "\n")
    server = Sshd(
        folder=folder,
        port=free_port(),
        user=getpass.getuser(),
        host_key=host_key,
        client_config=folder / "client_config",
    )
    # Not the account's own: its rc files may be slow, and may leave locks behind when killed.
    (folder / "home").mkdir()
    (folder / "sshd_config").write_text(
        f"{options}\nListenAddress 127.0.0.1\nPort {server.port}\nHostKey {folder}/host_key\n"
        f"PidFile none\nAuthorizedKeysFile {folder}/authorized_keys\nStrictModes no\nUsePAM no\n"
        "PasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"SetEnv HOME={folder}/home\n"
        "PermitRootLogin prohibit-password\nMaxSessions 10\nMaxStartups 100\n"
    )
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{server.port} {host_key}\n")
    server.client_config.write_text(
        f"Host *\n  IdentityFile {folder}/client_key\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known_hosts\n  GlobalKnownHostsFile none\n"
    )
    assert program
    server.start()
    try:
        yield server
    finally:
        server.stop()
