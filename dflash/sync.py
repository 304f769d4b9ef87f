"""`dflash sync`: a folder that still grows into an S3 prefix, each file as soon as it is closed.

A file is closed when its size and time of change stand still for a while; half-written ones
(hidden, `.partial`, the rows of `dflash generate` in the making) are never sent. Manifests go after
the files that they list. A store that gives no answer is asked again; nothing is lost by it. At the
end (`--until`) the whole folder is proved as `dflash put` does, and `.objects.json` written.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash import keys
from dflash.errors import InputInvalid, UsageError
from dflash.files import write_json
from dflash.objects import add_store_arguments, open_store, store_options
from dflash.progress import Progress, write_out
from dflash.put import Changed, Local, Sender, local_files, put
from dflash.s3 import KeysExpired, NoAnswer
from dflash.sources import NOT_INPUT
from dflash.syncing import for_each

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from dflash.s3 import StoreOptions

EXAMPLE = """example:
  python -m dflash sync completions s3://bucket/runs/a/completions --until manifest.json:complete

Without --until it sends what is closed now, and ends."""
OPEN_ENDS = (".partial", ".part", ".tmp")
LONGEST_PAUSE_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLE
    parser.add_argument("folder", type=Path, metavar="DIR", help="what grows")
    parser.add_argument("url", metavar="URL", help="s3://BUCKET/FOLDER or file:///DIR")
    add_store_arguments(parser)
    parser.add_argument(
        "--until", default="", metavar="FILE[:KEY]",
        help="go on until this file of DIR is there, and its JSON value KEY is true",
    )  # fmt: skip
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="seconds between looks (%(default)s)"
    )
    parser.add_argument(
        "--settle", type=float, default=10.0, metavar="S",
        help="a file that stands still so long is closed (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--receipt", type=Path, metavar="FILE", help="written at the end")


def run(args: argparse.Namespace) -> int:
    if args.every <= 0 or args.settle < 0:
        raise UsageError("--every must be more than 0, --settle no less than 0")
    if args.receipt is not None:
        args.receipt.unlink(missing_ok=True)
    done = sync(
        args.folder, args.url, store_options(args), until=args.until, every_s=args.every,
        settle_s=args.settle, progress=Progress(echo=sys.stderr),
    )  # fmt: skip
    if args.receipt is not None:
        write_json(args.receipt, done)
    write_out(done)
    return 0


def sync(
    folder: Path, url: str, options: StoreOptions, *, until: str = "", every_s: float = 5.0,
    settle_s: float = 10.0, progress: Progress,
) -> dict[str, Any]:  # fmt: skip
    """Send files as they close, until the end is there; returns what it came to."""
    if not until:
        if not folder.is_dir():  # with `until` whoever writes it may begin later
            raise InputInvalid(f"{folder} is no folder", "Name the folder that is to be sent.")
        growing = Growing(folder, url, options, settle_s=settle_s, progress=progress)
        growing.open_store()  # a wrong address is told although nothing may be closed
        growing.look()
        return growing.tell()
    growing = Growing(folder, url, options, settle_s=settle_s, progress=progress)
    pause = every_s
    missing = "" if folder.is_dir() else ", which is not there yet,"
    progress.emit("phase", message=f"follows {folder}{missing} until {until}")
    while not is_there(folder, until):
        before = keys.newest()
        try:
            growing.look()
            pause = every_s
        except KeysExpired as error:
            if before is None:
                raise
            progress.emit(
                "phase", message=f"{error.message}; it goes on with new ones",
                metrics={"keys": keys.told(refused=True)},
            )  # fmt: skip
            keys.wait_for_others(before, within_s=LONGEST_PAUSE_S, wait=time.sleep,
                                 stop=lambda: is_there(folder, until))  # fmt: skip
        except NoAnswer as error:
            progress.emit("phase", message=f"{error.message}; it is tried again")
            pause = min(2 * pause, LONGEST_PAUSE_S)
        time.sleep(pause)
    return {**growing.summary(), **put(folder, url, options, progress=progress)}


def is_there(folder: Path, until: str) -> bool:
    """Whether the end that was named has come."""
    name, _, key = until.partition(":")
    path = folder / name
    if not key:
        return path.exists()
    try:
        return json.loads(path.read_bytes()).get(key) is True
    except (OSError, ValueError, AttributeError):
        return False


class Growing:
    """What was seen of the folder, and what of it is there already."""

    def __init__(
        self, folder: Path, url: str, options: StoreOptions, *, settle_s: float, progress: Progress
    ) -> None:
        self._folder, self._url, self._options = folder, url, options
        self._settle_s, self._progress = settle_s, progress
        self._sender: Sender | None = None
        self._seen: dict[str, tuple[Local, float]] = {}
        """Each file as it was, and when it was first seen so."""
        self._sent: dict[str, Local] = {}
        self._moved = 0
        self._store = open_store(url, options)

    def look(self) -> None:
        """Send what has closed since the last look."""
        if not self._folder.is_dir():
            return  # whoever writes it has not begun
        closed = self._closed()
        last = [file for file in closed if file.name.rpartition("/")[2].startswith("manifest")]
        self._send([file for file in closed if file not in last])
        self._send(last)

    def _closed(self) -> list[Local]:
        now, found = time.monotonic(), []
        for file in local_files(self._folder):
            name = file.name.rpartition("/")[2]
            if name in NOT_INPUT or name.endswith(OPEN_ENDS) or self._sent.get(file.name) == file:
                continue
            known = self._seen.get(file.name)
            if known is None or known[0] != file:
                # Of a file from before the first look only its own time tells how long it stands.
                age = time.time() - file.changed_ns / 1e9 if known is None else 0.0
                known = self._seen[file.name] = (file, now - max(age, 0.0))
            if now - known[1] >= self._settle_s:
                found.append(file)
        return found

    def _send(self, files: Sequence[Local]) -> None:
        if not files:
            return
        sender = self.open_store()

        def one(file: Local) -> None:
            try:
                _, moved = sender.send(file)
            except (Changed, FileNotFoundError):
                return  # it was not closed after all
            self._sent[file.name] = file
            self._moved += moved

        with self._store.writing():
            for_each(one, files, self._options.connections, self._store)
        size = sum(file.size for file in self._sent.values())
        self._progress.emit(
            "step", done=size, unit="bytes", message=f"{_counted(len(self._sent))} in {self._url}",
            metrics={"files": len(self._sent), "moved": self._moved},
        )  # fmt: skip

    def open_store(self) -> Sender:
        """Asks the store once what it has; raises what is wrong with the address or the keys."""
        if self._sender is None:
            self._sender = Sender(self._store, self._options)
        return self._sender

    def tell(self) -> dict[str, Any]:
        """The summary, said in words as well: also of nothing."""
        done = self.summary()
        left = sum(name not in self._sent for name in self._seen)
        wait = f"; {left} more changed less than {self._settle_s:g} s ago" if left else ""
        self._progress.emit(
            "done", done=done["bytes"], total=done["bytes"], unit="bytes",
            message=f"{_counted(done['files'])} in {self._url}{wait}",
        )  # fmt: skip
        return done

    def summary(self) -> dict[str, Any]:
        size = sum(file.size for file in self._sent.values())
        return {"url": self._store.where, "files": len(self._sent), "bytes": size,
                "moved_files": self._moved}  # fmt: skip


def _counted(files: int) -> str:
    return f"{files:,} file{'' if files == 1 else 's'}"
