"""The processes of a training run: who is what, starting them, and ending all when one dies.

Ranks 0..T-1 run the target, T..T+D-1 train the drafter; colocated, every rank does both. Under
torchrun the environment says which rank this is; otherwise `launch` starts all of them here.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from dflash.errors import EXIT_INTERRUPTED, DflashError, InputInvalid, Interrupted
from dflash.feed import PeerLost, peer_errors
from dflash.files import read_json, write_json
from dflash.interrupt import StopRequest

if TYPE_CHECKING:
    from pathlib import Path

    from dflash.train_config import TrainConfig

POLL_S = 0.05
SETTLE_S = 2.0
"""After the first death, time for the others to say what they saw: the cause may come second."""
GRACE_S = 8.0
P2P_CHANNELS = 4
PARENT = "DFLASH_LAUNCHER_PID"
TORCHRUN_GRACE, MARGIN_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 5.0
"""How long torchrun waits after SIGTERM before it kills, if it is told by its environment; and what
a rank needs of that to leave."""
PR_SET_PDEATHSIG = 1
ERRORS = "rank-errors"
SAID = {"message": str, "hint": str, "kind": str, "pid": int}


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What one process of the run does."""

    rank: int
    targets: int
    drafters: int
    colocated: bool

    @property
    def world(self) -> int:
        return self.drafters if self.colocated else self.targets + self.drafters

    @property
    def is_drafter(self) -> bool:
        return self.colocated or self.rank >= self.targets

    @property
    def drafter(self) -> int:
        """Number among the drafter ranks."""
        return self.rank if self.colocated else self.rank - self.targets

    @property
    def leads(self) -> bool:
        """The one rank that saves and reports."""
        return self.is_drafter and self.drafter == 0

    def rank_of_drafter(self, drafter: int) -> int:
        return drafter if self.colocated else self.targets + drafter

    @property
    def label(self) -> str:
        kind = "drafter" if self.is_drafter else "target"
        return f"rank {self.rank} ({kind})"

    @classmethod
    def of(cls, config: TrainConfig, rank: int) -> Role:
        return cls(
            rank=rank,
            targets=0 if config.colocated else config.targets,
            drafters=config.drafters,
            colocated=config.colocated,
        )


def under_launcher() -> bool:
    """Whether torchrun or `launch` started this process as one of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def under_torchrun() -> bool:
    """Whether a launcher that knows nothing of this program started this process."""
    return under_launcher() and PARENT not in os.environ


def grace_left(asked_at: float) -> float | None:
    """Seconds until the launcher kills whom it asked to stop; None when it did not (0) or waits."""
    if not asked_at or not under_torchrun():
        return None
    allowed = float(os.environ.get(TORCHRUN_GRACE, "30"))
    return max(0.0, asked_at + allowed - MARGIN_S - time.monotonic())


def join_group(config: TrainConfig, *, cuda: bool) -> Role:
    """Enter the process group this environment describes."""
    import torch.distributed as dist

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    role = Role.of(config, rank)
    if role.world != world:
        raise DflashError(
            f"{role.targets} target and {role.drafters} drafter ranks need {role.world} processes, "
            f"{world} were started.",
            "Make --nproc-per-node (times --nnodes) equal to --targets plus --drafters.",
        )
    backend = config.backend
    if backend == "auto":
        backend = "nccl" if cuda else "gloo"
    # Credits and headers are host tensors whatever carries the states.
    backend = "cpu:gloo,cuda:nccl" if backend == "nccl" else backend
    with peer_errors("the other ranks"):
        dist.init_process_group(
            backend,
            init_method=os.environ.get("DFLASH_RENDEZVOUS", "env://"),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=config.timeout_s),
        )
    return role


def group_of_drafters(role: Role) -> Any:
    """Those that sum gradients; every rank must call, the targets' too."""
    import torch.distributed as dist

    with peer_errors("the other ranks"):
        return dist.new_group([role.rank_of_drafter(d) for d in range(role.drafters)])


def launcher_alive() -> None:
    """Raise when the launcher is gone: nobody would watch this rank or know that it runs."""
    parent = os.environ.get(PARENT)
    if parent is not None and os.getppid() != int(parent):
        raise PeerLost("The process that started this rank is gone.", "Run the command again.")


def end_with_launcher() -> None:
    """Linux kills this rank when its launcher dies, however long a model loads just then.

    Checkpoints are whole at any moment. Elsewhere the rank notices at its next step.
    """
    if PARENT in os.environ and sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    launcher_alive()  # it may be gone already


def record_error(out: Path, role: Role, error: DflashError) -> None:
    """Leave the reason where the launcher finds it."""
    with contextlib.suppress(OSError):
        write_json(
            out / ERRORS / f"{role.rank}.json",
            {
                "message": error.message,
                "hint": error.hint,
                "kind": type(error).__name__,
                "pid": os.getpid(),
            },
        )


def launch(config: TrainConfig, config_file: Path, out: Path, *, lock: int) -> None:
    """Start all ranks here and wait. The first that fails ends the job, with its reason."""
    world = Role.of(config, 0).world
    for old in (out / ERRORS).glob("*.json"):
        old.unlink()
    rendezvous = out / f".rendezvous-{os.getpid()}"
    for stale in out.glob(".rendezvous-*"):
        stale.unlink(missing_ok=True)
    started: list[subprocess.Popen[bytes]] = []
    try:
        with StopRequest() as stop:
            for rank in range(world):
                environment = _environment(Role.of(config, rank), rendezvous)
                argv = [sys.executable, "-m", "dflash.train", str(config_file)]
                started.append(subprocess.Popen(argv, env=environment, pass_fds=(lock,)))
            _watch(config, out, started, stop)
    finally:
        _end(started)
        rendezvous.unlink(missing_ok=True)


def _environment(role: Role, rendezvous: Path) -> dict[str, str]:
    world = role.world
    threads = str(max(1, (os.cpu_count() or 1) // world))
    defaults = {
        "OMP_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {
        **defaults,
        "NCCL_MAX_P2P_NCHANNELS": str(_channels(role)),
        "GLOO_SOCKET_IFNAME": "lo",  # all ranks are here; listen nowhere else
        "NCCL_SOCKET_IFNAME": "lo",
        **os.environ,
        "RANK": str(role.rank),
        "LOCAL_RANK": str(role.rank),
        "WORLD_SIZE": str(world),
        "DFLASH_RENDEZVOUS": f"file://{rendezvous.resolve()}",
        PARENT: str(os.getpid()),
    }


def _channels(role: Role) -> int:
    """Multiprocessors on which a transfer waits for its other end, spinning.

    A few suffice for one target's states; a drafter that several feed waits for each at once.
    """
    return max(1, P2P_CHANNELS // max(1, -(-role.targets // role.drafters)))


def _watch(
    config: TrainConfig, out: Path, ranks: list[subprocess.Popen[bytes]], stop: StopRequest
) -> None:
    forwarded = False
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() not in (None, 0, EXIT_INTERRUPTED) for rank in ranks):
            break
        if stop and not forwarded:
            forwarded = True
            for rank in ranks:
                rank.send_signal(signal.SIGTERM)
        time.sleep(POLL_S)
    codes = [rank.poll() for rank in ranks]
    if all(code == 0 for code in codes):
        return
    if all(code in (0, EXIT_INTERRUPTED) for code in codes):
        lead = config.targets if not config.colocated else 0
        said = _said(out, lead, ranks[lead].pid)
        told = (said["message"], said["hint"]) if said else ("Stopped; the checkpoint is saved.",)
        raise Interrupted(*told)
    if stop and all(code in (None, 0, EXIT_INTERRUPTED, -signal.SIGTERM) for code in codes):
        raise Interrupted(
            "Stopped before the first step.", "Run the same command again; it goes on where it was."
        )
    _raise_cause(config, out, ranks)


def _raise_cause(config: TrainConfig, out: Path, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Name the rank that failed first: a signal, or its own error, before those who lost a peer."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline and any(rank.poll() is None for rank in ranks):
        time.sleep(POLL_S)
    candidates: list[tuple[int, str, str]] = []
    for number, process in enumerate(ranks):
        code = process.poll()
        label = Role.of(config, number).label
        if code in (None, 0, EXIT_INTERRUPTED):
            continue
        said = _said(out, number, process.pid) or {}
        if code is not None and code < 0:
            name = signal.Signals(-code).name
            hint = "SIGKILL without a person behind it is mostly the kernel, out of memory."
            candidates.append((0, f"{label} was killed by {name}.", f"{hint} Rerun to resume."))
        else:
            message = said.get("message", f"exit code {code}, see its output above")
            lost = said.get("kind") == PeerLost.__name__
            candidates.append((2 if lost else 1, f"{label}: {message}", said.get("hint", "")))
    _, message, hint = min(candidates)
    raise DflashError(f"Training ended: {message}", hint)


def _said(out: Path, rank: int, pid: int) -> dict[str, Any] | None:
    """What this very process left of its failure, if it could."""
    try:
        said = read_json(out / ERRORS / f"{rank}.json", "reason of a rank", SAID)
    except InputInvalid:
        return None
    return said if said["pid"] == pid else None


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """No rank outlives the launcher: ask, wait a little, kill."""
    living = [rank for rank in ranks if rank.poll() is None]
    for rank in living:
        rank.terminate()
    deadline = time.monotonic() + GRACE_S
    while time.monotonic() < deadline and any(rank.poll() is None for rank in living):
        time.sleep(POLL_S)
    for rank in living:
        if rank.poll() is None:
            rank.kill()
        rank.wait()
