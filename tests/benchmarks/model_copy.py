"""A model into place: `model_copy` beside cp, rsync and a single stream, in turns.

A store behind HTTP that gives each stream so many MB/s and waits before each answer, as network
mounts and object stores do: there latency is the limit, and curl is the single stream. The same
store behind a line that all streams share: there bandwidth is. This machine's disk, read with its
pages dropped before each turn, and written until all is on it: `cp` and `dd` with fsync. All but
`model_copy` prove nothing, but for the row that hashes what `cp` made. rsync is measured where it
is installed.
Run: python tests/benchmarks/model_copy.py [MEBIBYTES] [MB/S A STREAM] [DELAY MS] [MB/S ON THE LINE]
With `disk` as fifth word, the disk's part alone.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from runbook.bundle import bundle_files  # noqa: E402
from tests.support.hub_double import COMMIT, NAME, HubDouble  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS, FILES = 3, 4
SHIPPED = Path(tempfile.mkdtemp(prefix="shipped-"))


def model_copy(source: str, target: Path, **env: str) -> None:
    argv = [sys.executable, str(SHIPPED / "remote/payloads/model_copy.py"), "--source", source]
    argv += ["--shm", str(target), "--disk", str(target), "--no-shm"]
    subprocess.run(
        argv, check=True, stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(SHIPPED), **env},
    )  # fmt: skip


def drop(folder: Path) -> None:
    """Out of the page cache, so that the disk is read."""
    for path in folder.iterdir():
        with path.open("rb") as handle:
            os.fsync(handle.fileno())
            os.posix_fadvise(handle.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def best(
    ways: dict[str, Callable[[Path], object]], before: Callable[[], object],
    where: str = "/dev/shm",
) -> None:  # fmt: skip
    """Rounds of all in turns: the best of each, the median, and processor time."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, work in ways.items():
            with tempfile.TemporaryDirectory(dir=where) as folder:
                before()
                began, used = time.perf_counter(), processor()
                work(Path(folder) / "to")
                found[name].append((time.perf_counter() - began, processor() - used))
    for name, both in found.items():
        took, used_by = [one for one, _ in both], [one for _, one in both]
        print(
            f"  {name:<14} best {min(took):6.2f} s   median {statistics.median(took):6.2f} s   "
            f"processor {min(used_by):5.2f} s"
        )


def processor() -> float:
    """Seconds of it that our ended children have had."""
    return sum(os.times()[2:4])


def run(*words: str) -> None:
    subprocess.run(words, check=True, stderr=subprocess.DEVNULL)


def from_disk(data: dict[str, bytes], size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder)
        for name, content in data.items():
            (source / name).write_bytes(content)
        ways: dict[str, Callable[[Path], object]] = {
            "model_copy": lambda to: model_copy(str(source), to),
            "cp": lambda to: run("cp", "-r", str(source), str(to)),
            "read alone": lambda _: [path.read_bytes() for path in source.iterdir()],
        }
        if shutil.which("rsync"):
            ways["rsync"] = lambda to: run("rsync", "-a", f"{source}/", str(to))
        print(f"{size >> 20} MiB in {FILES} files from {source.parent} to /dev/shm")
        best(ways, lambda: drop(source))


def to_disk(data: dict[str, bytes], size: int) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        source, names = Path(folder), list(data)
        for name, content in data.items():
            (source / name).write_bytes(content)

        def cp(to: Path) -> None:
            run("cp", "-r", str(source), str(to))
            run("sync", *(str(to / name) for name in names))

        def cp_and_hash(to: Path) -> None:
            cp(to)
            subprocess.run(["sha256sum", *names], cwd=to, check=True, stdout=subprocess.DEVNULL)

        def dd(to: Path) -> None:
            to.mkdir()
            for name in names:
                run("dd", f"if={source / name}", f"of={to / name}", "bs=8M", "conv=fsync")

        ways: dict[str, Callable[[Path], object]] = {
            "model_copy": lambda to: model_copy(str(source), to),
            "cp, sync": cp, "the same, hash": cp_and_hash, "dd, fsync": dd,
        }  # fmt: skip
        if shutil.which("rsync"):
            ways["rsync --fsync"] = lambda to: run("rsync", "-a", "--fsync", f"{source}/", str(to))
        print(
            f"{size >> 20} MiB in {FILES} files from /dev/shm to {tempfile.gettempdir()}, fsynced"
        )
        best(ways, lambda: None, tempfile.gettempdir())


def main() -> None:
    words = sys.argv[1:] + ["256", "10", "30", "100"][len(sys.argv) - 1 :]
    size = int(words[0]) << 20
    for name, content in bundle_files("payloads").items():
        (SHIPPED / name).parent.mkdir(parents=True, exist_ok=True)
        (SHIPPED / name).write_bytes(content)
    data = {f"model-{n}.safetensors": os.urandom(size // FILES) for n in range(FILES)}
    if sys.argv[5:] != ["disk"]:
        from_store(data, size, words)
    print(f"load {os.getloadavg()}")
    from_disk(data, size)
    to_disk(data, size)


def from_store(data: dict[str, bytes], size: int, words: list[str]) -> None:
    rate, delay, line = float(words[1]) * 1e6, float(words[2]) / 1000, float(words[3]) * 1e6
    with HubDouble(files=data, latency_s=delay, stream_rate=rate) as hub:

        def single(target: Path) -> None:
            target.mkdir()
            for name in data:
                url = f"{hub.url}/{NAME}/resolve/{COMMIT}/{name}"
                command = ["curl", "-sSfL", "-o", str(target / name), url]
                subprocess.run(command, check=True)

        print(f"{size >> 20} MiB in {FILES} files over HTTP, {words[1]} MB/s a stream, "
              f"{words[2]} ms to each answer; best of {ROUNDS}")  # fmt: skip
        best(
            {
                "model_copy": lambda to: model_copy(f"hub:{NAME}", to, HF_ENDPOINT=hub.url),
                "curl": single,
            },
            lambda: None,
        )
        hub.stream_rate, hub.line.rate = 0.0, line
        print(f"the same over a line of {words[3]} MB/s, which would take {size / line:.2f} s")
        best(
            {
                "model_copy": lambda to: model_copy(f"hub:{NAME}", to, HF_ENDPOINT=hub.url),
                "curl": single,
            },
            lambda: None,
        )


if __name__ == "__main__":
    try:
        main()
    finally:
        shutil.rmtree(SHIPPED)
