"""`runbook run` of a workspace whose far machine is this one, killed at the hand-over of keys.

Use: `engine_process.py FOLDER [before|after]`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from remote import Host, LocalTransport
from runbook.engine import hosts, renewing
from runbook.service import Service


def main(folder: str, at: str = "") -> None:
    hosts.open_transport = lambda _: LocalTransport()  # type: ignore[assignment]
    renewing.AGAIN_S = 0.2
    hand = Host.hand_keys

    def killed(self: Host, *args: Any, **more: Any) -> None:
        if at == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        hand(self, *args, **more)
        if at == "after":
            os.kill(os.getpid(), signal.SIGKILL)

    Host.hand_keys = killed  # type: ignore[method-assign]
    with Service.open(Path(folder), actor="first") as service:
        service.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
