"""`dflash train`: online training of a drafter, states straight from the target's ranks.

The same code for one process (`--colocated`), M target and N drafter processes, and torchrun. The
sequence of data follows from the seed alone and a resume continues it exactly, so every step that
was reported is in a checkpoint or will be computed again alike.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import gpus
from dflash.errors import EXIT_FAILED, EXIT_INTERRUPTED, DflashError, UsageError
from dflash.files import read_json, write_json
from dflash.progress import Progress, write_out
from dflash.summary import (
    SUMMARY,
    is_over,
    known_summary,
    read_summary,
    require_sent,
    was_sent,
)
from dflash.train_config import TrainConfig
from dflash.train_options import add_arguments, config_from

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from dflash.ranks import Role
    from dflash.run_plan import Plan, Types

__all__ = ["add_arguments", "run", "train"]

RUN = "run.json"
LOCK_PATIENCE_S = 20.0
"""Ranks of a launcher that was killed end within a step; a rerun waits for them this long."""


def run(args: argparse.Namespace) -> int:
    from dflash.ranks import under_launcher

    config = config_from(args)
    measured = args.calibrate or args.calibrate_only
    if under_launcher():  # torchrun started this process as one of many
        if measured:
            raise UsageError(
                "the number of processes is given already",
                "Run with --calibrate-only before, without torchrun, and pass the split it names.",
            )
        return whole_process(config)
    if measured:
        from dflash.calibrate import calibrate

        config, text = calibrate(config)
        sys.stderr.write(text + "\n")
        if args.calibrate_only:
            return 0
    write_out(train(config))
    return 0


def train(config: TrainConfig) -> dict[str, Any]:
    """Train to the end, or go on from the newest checkpoint in `out`; returns the summary."""
    from dflash.ranks import Role, launch
    from dflash.run_plan import plan

    out = Path(config.out)
    out.mkdir(parents=True, exist_ok=True)
    with _only_run(out) as lock:
        finished = finished_or_restored(config)
        if finished is not None:
            return sent(config, finished)
        plan(config)  # what is wrong with the input is said here, before any process starts
        write_json(out / RUN, config.to_json())
        role = Role.of(config, 0)
        if role.world == 1:
            run_rank(config, role)
        else:
            launch(config, out / RUN, out, lock=lock)
    return require_sent(read_summary(out))


def sent(config: TrainConfig, finished: dict[str, Any]) -> dict[str, Any]:
    """A run that is over; its last checkpoint is sent where it was to go, if it is not there."""
    from dflash.upload import Uploader, options_of

    checkpoint = Path(finished["checkpoint"])
    if not config.upload or was_sent(finished, config.upload, checkpoint.name):
        return require_sent(finished)
    tell = Progress(echo=sys.stderr)
    uploader = Uploader(
        config.upload, lambda text: tell.emit("phase", message=text), options_of(config)
    )
    uploader.offer(Path(config.out) / checkpoint.name)
    found = finished | {"upload": uploader.close()}
    write_json(Path(config.out) / SUMMARY, found)
    return require_sent(found)


@contextlib.contextmanager
def _only_run(out: Path) -> Iterator[int]:
    """Hold the folder; its ranks inherit the lock, so it is free when the last of them is gone."""
    with (out / ".lock").open("w") as handle:
        deadline = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise DflashError(
                        f"Another training run writes to {out}.",
                        "Wait for it, or choose another --out.",
                    ) from None
            time.sleep(0.1)
        yield handle.fileno()


def finished_or_restored(config: TrainConfig) -> dict[str, Any] | None:
    """The summary of a run that is over, else None, with all in `out` that it goes on from."""
    from dflash.checkpoint import latest_checkpoint, remove_partial

    out, tell = Path(config.out), Progress(echo=sys.stderr)
    newest = latest_checkpoint(out)
    if newest is not None:
        summary = known_summary(out, lambda message: tell.emit("phase", message=message))
        if summary is not None and is_over(summary, newest, config):
            return summary
    restore(config)
    remove_partial(out)  # after it: it goes on with what a killed one fetched
    return None


def restore(config: TrainConfig) -> None:
    """On a machine that has no checkpoint yet: the newest that was uploaded."""
    from dflash.checkpoint import latest_checkpoint
    from dflash.upload import fetch_latest, options_of

    out = Path(config.out)
    if config.upload and latest_checkpoint(out) is None:
        tell = Progress(echo=sys.stderr)
        fetch_latest(
            config.upload, out, lambda message: tell.emit("phase", message=message),
            options_of(config),
        )  # fmt: skip


def rank_main(config: TrainConfig) -> int:
    """Entry of a process that is one rank of many; leaves the reason of a failure in a file."""
    import torch
    import torch.distributed as dist

    from dflash.ranks import join_group, record_error, under_torchrun

    role = join_group(config, cuda=torch.cuda.is_available())
    try:
        if under_torchrun():
            run_by_torchrun(config, role)
        else:
            run_rank(config, role)
    except DflashError as error:
        record_error(Path(config.out), role, error)
        sys.stderr.write(f"dflash train, {role.label}: {error.message}\n")
        return error.exit_code
    dist.destroy_process_group()
    return 0


def whole_process(config: TrainConfig) -> int:
    """As `rank_main`, for a process that is nothing else: after a failure it is gone at once.

    The orderly way would wait for transfers whose other end may be waiting too.
    """
    try:
        code = rank_main(config)
    except DflashError:
        raise
    except KeyboardInterrupt:  # before the first step: there is nothing to save
        sys.stderr.write("dflash train: interrupted; run the same command again\n")
        code = EXIT_INTERRUPTED
    except Exception:  # noqa: BLE001 - told in full, as the interpreter would
        traceback.print_exc()
        code = EXIT_FAILED
    if code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def run_by_torchrun(config: TrainConfig, role: Role) -> None:
    """What `train` does around a run: here the lead does it for all ranks."""
    from dflash.turns import done_by_one

    out = Path(config.out)
    with contextlib.ExitStack() as held:  # the folder, by the lead, until it is done

        def prepare() -> dict[str, Any] | None:
            with mendable():
                out.mkdir(parents=True, exist_ok=True)
                held.enter_context(_only_run(out))
                return finished_or_restored(config)

        finished = done_by_one(prepare, mine=role.leads, rank=role.rank_of_drafter(0))
        if finished is None:
            run_rank(config, role)
        if role.leads:
            write_out(sent(config, finished) if finished else require_sent(read_summary(out)))


def run_rank(config: TrainConfig, role: Role) -> None:
    """Do this rank's part of the run."""
    from dflash.drafter_run import DrafterRun
    from dflash.interrupt import StopRequest
    from dflash.out_of_memory import is_out_of_memory, out_of_memory
    from dflash.ranks import under_launcher
    from dflash.run_plan import Types, plan

    types = Types.of(config)
    made = plan(config)
    if config.deterministic:
        make_deterministic()
    if role.world > 1:
        kinds = agree(config, made, gpus.kind(types.device.index))
        made = replace(made, notes=(*made.notes, *gpus.unequal(role, kinds)))
    try:
        with StopRequest(launched=under_launcher()) as stop, mendable():
            if role.is_drafter:
                drafter = DrafterRun(config, role, made, types)
                drafter.run(stop)
            else:
                run_target(config, role, made, types)
    except (RuntimeError, MemoryError) as error:
        if is_out_of_memory(error):
            raise out_of_memory(error, role, config) from error
        raise


@contextlib.contextmanager
def mendable() -> Iterator[None]:
    """A full disk, a missing right: the user's to mend."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise DflashError(
            f"{error.strerror or error}{where}", "Free the cause and run the same command again."
        ) from error


def make_deterministic() -> None:
    """The same bits from the same inputs on a GPU too; some kernels are slower so."""
    import torch

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.backends.cudnn.benchmark = False


def agree(config: TrainConfig, made: Plan, gpu: str | None = None) -> list[str | None]:
    """All ranks must have derived the same run: on several nodes files may differ. Their GPUs."""
    import torch.distributed as dist

    from dflash.feed import peer_errors
    from dflash.run_plan import first_step

    own = {
        "the newest checkpoint in --out": first_step(config),
        "the number of steps": made.total,
        "the training data": made.fingerprint,
        "the target": made.target,
    }
    found: list[Any] = [None] * dist.get_world_size()
    with peer_errors("the other ranks"):
        dist.all_gather_object(found, (own, gpu))
    for name, value in found[0][0].items():
        for rank, (other, _) in enumerate(found):
            if other[name] != value:
                raise DflashError(
                    f"Rank 0 and rank {rank} differ in {name}: {value} and {other[name]}.",
                    "Every node needs the same --target and --data, and --out on a file system "
                    "that all of them share.",
                )
    return [one for _, one in found]


def run_target(config: TrainConfig, role: Role, made: Plan, types: Types) -> None:
    """Serve states until the schedule ends or the drafters stop."""
    from dflash.feed import serve_states
    from dflash.ranks import group_of_drafters, launcher_alive
    from dflash.run_plan import first_step, frozen_target, schedule_of
    from dflash.target import TargetTaps
    from dflash.validation import HeldOut

    group_of_drafters(role)
    model = frozen_target(config, types)
    taps = TargetTaps(model, made.shape.target_layer_ids)
    HeldOut(config, made).send(role, taps, types.wire)
    serve_states(
        schedule_of(config, role, made, first_step(config)),
        role.rank,
        taps,
        made.batches,
        dtype=types.wire,
        rank_of_drafter=role.rank_of_drafter,
        alive=launcher_alive,
    )


def main() -> int:
    """`python -m dflash.train RUN.json`: one rank, started by the launcher."""
    from dflash.ranks import end_with_launcher

    try:
        end_with_launcher()
        config = TrainConfig.from_json(read_json(Path(sys.argv[1]), "run's configuration"))
        return whole_process(config)
    except DflashError as error:
        sys.stderr.write(f"dflash train: {error.message}\n")
        return EXIT_FAILED


if __name__ == "__main__":
    sys.exit(main())
