"""The command line on simulated machines: in this process, or in one of its own to be killed.

`python -m tests.support.simulation.driver VERB...` with $SIM_FLEET, the fleet's file, and
$SIM_KILL_AT, the moment at which the process is killed; or $SIM_KILL_AFTER, the task after whose
end it is.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from runbook import retries
from runbook.cli.main import main
from runbook.engine import handing, hosts, runner, start, watch
from runbook.grants import Issued
from runbook.verbs import base
from tests.support.simulation.fleet import Fleet
from tests.support.simulation.host import Kill, SimulatedHost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from state import HostBinding

KEYS = {"AWS_SESSION_TOKEN": "what-a-store-would-issue"}


@contextlib.contextmanager
def simulated(fleet: Fleet, *, kill_at: int = 0, kill_after: str = "") -> Iterator[None]:
    """Puts the fleet in the place of SSH, and makes the engine wait for nobody."""
    kill = Kill(kill_at, kill_after)

    def meet(_: hosts.Hosts, binding: HostBinding) -> SimulatedHost:
        address = binding.address or "local"
        return SimulatedHost(
            fleet, address=address, root=binding.root, work=binding.work, kill=kill
        )

    at_once = (0.001, 0.005)
    with (
        mock.patch.object(hosts.Hosts, "meet", meet),
        mock.patch.object(retries, "backoff_s", return_value=0.0),
        mock.patch.object(start, "in_turn", return_value=True),
        mock.patch.object(handing, "issue", return_value=Issued(values=KEYS)),
        mock.patch.object(base, "Hosts", partial(hosts.Hosts, clock=fleet.clock)),
        mock.patch.object(runner, "POLL_S", at_once),
        mock.patch.object(watch, "POLL_S", at_once),
    ):
        yield


def run_here(fleet: Fleet, words: list[str]) -> tuple[int, str, str]:
    """A verb in this process: exit code, output, errors."""
    out, err = io.StringIO(), io.StringIO()
    with (
        simulated(fleet),
        mock.patch.object(sys, "argv", ["runbook", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        else:
            code = 0
    return code, out.getvalue(), err.getvalue()


if __name__ == "__main__":
    with simulated(
        Fleet(Path(os.environ["SIM_FLEET"])),
        kill_at=int(os.environ.get("SIM_KILL_AT", "0")),
        kill_after=os.environ.get("SIM_KILL_AFTER", ""),
    ):
        main()
