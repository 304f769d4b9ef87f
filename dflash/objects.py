"""Objects under one address: a prefix in a bucket, or a folder (`file://`) that stands in for one.

Also the options of the commands that go there, and which names may be there.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dflash.errors import UsageError
from dflash.files import ASIDE_SUFFIX, lock_folder, sha256_file, write_aside
from dflash.ranged import remove_partials
from dflash.s3 import ADDRESSING, S3, StoreOptions
from dflash.s3_store import Listed, S3Store, require_same

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

FILE = "file://"
MANIFEST = ".objects.json"
FORMAT = "dflash-objects/1"
BLOCK = 1 << 20


def add_store_arguments(parser: argparse._ActionsContainer) -> None:
    """The options of `put` and `get`, and of `generate` for its upload."""
    parser.add_argument("--endpoint", default="", metavar="URL", help="of an S3-compatible store")
    parser.add_argument("--region", default="", metavar="NAME", help="of the bucket")
    parser.add_argument(
        "--addressing", default="auto", choices=ADDRESSING, help="of the bucket (%(default)s)"
    )
    parser.add_argument(
        "--connections", type=int, default=32, metavar="N", help="at a time (%(default)s)"
    )
    parser.add_argument(
        "--part-mib", type=int, default=8, metavar="N",
        help="size of the parts of large files (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--short-lived-only", action="store_true",
        help="refuse keys without a session token: this machine is not ours",
    )  # fmt: skip


def store_options(args: argparse.Namespace) -> StoreOptions:
    if args.connections < 1:
        raise UsageError(f"--connections {args.connections} is less than one")
    if args.part_mib < 5:
        raise UsageError(f"--part-mib {args.part_mib}: S3 takes no parts of less than 5 MiB")
    return StoreOptions(
        endpoint=args.endpoint, region=args.region, addressing=args.addressing,
        connections=args.connections, part=args.part_mib << 20,
        short_lived_only=args.short_lived_only,
    )  # fmt: skip


def open_store(url: str, options: StoreOptions) -> S3Store | FolderStore:
    """The store behind an address."""
    if url.startswith(S3):
        return S3Store(url, options)
    if url.startswith(f"{FILE}/"):
        return FolderStore(Path(url.removeprefix(FILE)))
    raise UsageError(f"{url} is no address of objects", "Write s3://BUCKET/FOLDER or file:///DIR.")


def is_hidden(name: str) -> bool:
    """Locks, files being written, our own manifest: nobody's results."""
    return any(part.startswith(".") for part in name.split("/"))


def stays_inside(name: str) -> bool:
    """Whether a name from elsewhere is one plain path below a folder."""
    path = PurePosixPath(name)
    plain = str(path) == name and name != "." and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Lock the folder; remove what killed writers left below it, and at the end what is of no use
    any more."""
    with lock_folder(folder):
        for left in folder.rglob(f".*{ASIDE_SUFFIX}"):
            left.unlink(missing_ok=True)
        yield
        remove_partials(folder)


class FolderStore:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = f"{FILE}{folder}".rstrip("/")

    def writing(self) -> contextlib.AbstractContextManager[None]:
        return only_writer(self.folder)

    def listed(self) -> dict[str, Listed]:
        return {
            path.relative_to(self.folder).as_posix(): Listed(size=path.stat().st_size)
            for path in self.folder.rglob("*")
            if path.is_file()
        }

    def digest(self, name: str) -> str:
        return sha256_file(self.folder / name)

    def send(self, path: Path, name: str, size: int, digest: str, data: memoryview | None) -> None:
        del size, digest, data  # read back by whoever asks
        with path.open("rb") as reading, write_aside(self.folder / name) as writing:
            shutil.copyfileobj(reading, writing, BLOCK)

    def fetch(self, name: str, size: int, path: Path, digest: str) -> str:
        seen, arrived = hashlib.sha256(), 0
        with (self.folder / name).open("rb") as reading, write_aside(path, named=False) as writing:
            while block := reading.read(BLOCK):
                seen.update(block)
                arrived += writing.write(block)
            found = seen.hexdigest()
            require_same(
                f"{self.where}/{name}", size=size, digest=digest, found_size=arrived, found=found
            )
        return found

    def read(self, name: str) -> bytes | None:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        with write_aside(self.folder / name) as handle:
            handle.write(data)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def cancel(self) -> None:
        """Nothing goes on by itself here."""
