"""What a proved transfer costs beside a plain `cat` through OpenSSH, over a real sshd on loopback.

Both in one run and in turns, so that the ratio holds on a machine that others use too; files lie in
memory, so that no disk is measured. Ours hashes every block on both sides, writes aside, reads the
whole back and renames. Run: python tests/benchmarks/transfer_speed.py [MEBIBYTES]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from remote import Host, HostTarget
from remote.ssh import SshTransport
from tests.support.sshd import Sshd, running_sshd

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 3


def plain(sshd: Sshd, command: str, given: Path | None, taken: Path | None) -> None:
    """One stream through the user's own ssh."""
    words = ["ssh", "-F", str(sshd.client_config), "-p", str(sshd.port)]
    null = Path(os.devnull)
    with (given or null).open("rb") as source, (taken or null).open("wb") as target:
        words += [f"{sshd.user}@127.0.0.1", command]
        subprocess.run(words, stdin=source, stdout=target, check=True)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else 256) << 20
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        folder = Path(name)
        source, there, back = folder / "source", folder / "there", folder / "back"
        source.write_bytes(os.urandom(size))
        with running_sshd(folder) as sshd:
            address = HostTarget(
                kind="ssh", address="127.0.0.1", user=sshd.user, port=sshd.port,
                root=str(folder / "root"), host_key=sshd.host_key,
            )  # fmt: skip
            transport = SshTransport(address, config=sshd.client_config)
            host = Host(transport, root=address.root, workspace_id="w")
            host.identity()
            ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
                "up": (
                    lambda: plain(sshd, f"cat > {there}", source, None),
                    lambda: host.push(source, str(there), headroom=0),
                ),
                "down": (
                    lambda: plain(sshd, f"cat {source}", None, back),
                    lambda: host.pull(str(source), back, headroom=0),
                ),
            }
            print(f"{size >> 20} MiB, median of {ROUNDS}, MB/s")
            for way, (theirs, ours) in ways.items():
                spent: tuple[list[float], list[float]] = ([], [])
                for _ in range(ROUNDS):
                    for work, list_of in zip((theirs, ours), spent, strict=True):
                        there.unlink(missing_ok=True)
                        back.unlink(missing_ok=True)
                        list_of.append(seconds(work))
                cat, push = (size / 1e6 / sorted(times)[ROUNDS // 2] for times in spent)
                print(f"{way:5} cat {cat:6.0f}   ours {push:6.0f}   ratio {push / cat:.2f}")
            host.close()


if __name__ == "__main__":
    main()
