"""Ports for servers that are started later: between the choice and the start nobody gets them.

A port that was only found free is found free by another process of the tests as well. So each one
is kept by a name in the kernel, for as long as the process lives that chose it; what listens on the
port itself does not matter to that. All lie below the range from which the kernel gives ports to
whoever connects, so that a server that is started again finds its own still free.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress

FIRST, PAST = 12_000, 31_000
BESIDE = 1_000
"""A server takes its port and the one so far above."""


def free_ports(count: int) -> list[int]:
    """So many, each with the one `BESIDE` above free too."""
    found: list[int] = []
    begin = os.getpid() % (PAST - FIRST)
    for number in range(PAST - FIRST):
        port = FIRST + (begin + number) % (PAST - FIRST)
        if len(found) == count:
            break
        if _is_free(port) and _is_free(port + BESIDE) and _keep(port) and _keep(port + BESIDE):
            found.append(port)
    assert len(found) == count, "no free ports"
    return found


def free_port() -> int:
    return free_ports(1)[0]


def _is_free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("0.0.0.0", port))
        return True
    return False


def _keep(port: int) -> bool:
    """False when another has it. Ends with this process."""
    with socket.socket(socket.AF_UNIX) as mark, suppress(OSError):
        mark.bind(f"\0port-of-a-test-{port}")
        mark.detach()
        return True
    return False
