"""Files arrive as they were, however often the link is cut; nothing is believed for its size."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import subprocess
from typing import TYPE_CHECKING

import pytest

from remote import Host, LocalTransport, NoRoom, Result, TransferFailed, Unreachable
from remote.transfer import BLOCK

if TYPE_CHECKING:
    from pathlib import Path

SIZE = int(os.environ.get("RUNBOOK_TRANSFER_BYTES", 64 << 20))
SEED = int(os.environ.get("RUNBOOK_SEED", 1))


class Flaky(LocalTransport):
    """Cuts streams of blocks at a random byte, and loses the answers that a test names."""

    def __init__(self, cuts: int = 0) -> None:
        super().__init__()
        self.cuts = cuts
        self.cut = 0
        self.dead = False
        self.lost: list[str] = []
        self.random = random.Random(SEED)

    def run(self, argv, *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        if self.dead:
            raise Unreachable("dead")
        result = super().run(argv, input=input, timeout=timeout)
        self.lose(argv)
        return result

    @contextlib.contextmanager
    def open(self, argv, *, timeout: float):
        if self.dead:
            raise Unreachable("dead")
        with super().open(argv, timeout=timeout) as pipe:
            if self.cut < self.cuts:
                left = [self.random.randrange(1000, SIZE // 8)]
                self.shorten(pipe, left)
            yield pipe
        self.lose(argv)

    def shorten(self, pipe, left: list[int]) -> None:
        """The pipe carries so many bytes, both ways together, and breaks within a block."""
        write, read = pipe.write, pipe.read

        def spend(size: int) -> None:
            before, left[0] = left[0], left[0] - size
            if left[0] < 0:
                self.cut += before >= 0
                pipe.abort()
                raise Unreachable("cut")

        def short_write(data: bytes) -> None:
            if len(data) > left[0]:
                write(data[: max(0, left[0])])
            spend(len(data))
            write(data)

        def short_read(size: int) -> bytes:
            data = read(size)
            spend(len(data))
            return data

        pipe.write, pipe.read = short_write, short_read

    def lose(self, argv) -> None:
        if argv[-1] in self.lost:
            self.lost.remove(argv[-1])
            raise Unreachable("the answer was lost")

    def bulk(self):
        return self


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def noise(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        for start in range(0, size, 1 << 20):
            file.write(random.randbytes(min(1 << 20, size - start)))
    return path


@pytest.fixture
def flaky(bench):
    transport = Flaky()
    host = Host(transport, root=str(bench.root), workspace_id="w")
    host.flaky = transport
    return host


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): sha256(path) if path.is_file() else "folder"
        for path in sorted(folder.rglob("*"))
    }


@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_transfer_cut_ten_times_ends_equal(flaky, tmp_path, way):
    source, target = noise(tmp_path / "here", SIZE), tmp_path / "there"
    flaky.flaky.cuts = 10
    if way == "push":
        report = flaky.push(source, str(target), headroom=0)
    else:
        report = flaky.pull(str(source), target, headroom=0)
    assert (flaky.flaky.cut, report.cuts) == (10, 10)
    assert sha256(target) == sha256(source)
    assert not list(tmp_path.glob(".*.partial"))


def test_a_second_transfer_moves_nothing(flaky, tmp_path):
    source, target = noise(tmp_path / "here", 9 << 20), tmp_path / "there"
    assert flaky.push(source, str(target)).sent == 9 << 20
    assert flaky.push(source, str(target)).sent == 0
    assert flaky.pull(str(target), source).sent == 0


def test_a_given_up_transfer_goes_on_where_it_was(flaky, tmp_path):
    source, target = noise(tmp_path / "here", 40 << 20), tmp_path / "there"

    def after(done) -> None:
        flaky.flaky.dead = done.done >= 20 << 20

    with pytest.raises(Unreachable, match="dead") as given_up:
        flaky.push(source, str(target), progress=after, patience_s=0.3)
    assert "what arrived is kept" in given_up.value.hint
    assert not target.exists()
    flaky.flaky.dead = False
    assert flaky.push(source, str(target)).sent <= 20 << 20
    assert sha256(target) == sha256(source)


def test_every_request_may_be_repeated(flaky, tmp_path):
    source, target = noise(tmp_path / "here", BLOCK + 7), tmp_path / "there"
    flaky.flaky.lost = ["put_open", "put", "hashes", "put_close", "put_close"]
    assert flaky.push(source, str(target)).cuts == 5
    assert sha256(target) == sha256(source)
    flaky.flaky.lost = ["list", "get", "hashes"]
    flaky.pull(str(target), tmp_path / "back")
    assert sha256(tmp_path / "back") == sha256(source)
    name = "x" * 250
    flaky.push(source, str(tmp_path / name))
    assert sha256(tmp_path / name) == sha256(source)


def test_a_wrong_byte_in_a_part_is_found_and_sent_again(flaky, tmp_path):
    source, target = noise(tmp_path / "here", 5 * BLOCK + 17), tmp_path / "there"
    part = tmp_path / ".there.partial"
    data = bytearray(source.read_bytes())
    data[2 * BLOCK + 5] ^= 1
    part.write_bytes(data + b"too much")
    report = flaky.push(source, str(target))
    assert sha256(target) == sha256(source)
    assert report.sent == BLOCK, "the one block"


def test_the_same_size_is_not_the_same_content(flaky, tmp_path):
    source, target = noise(tmp_path / "here", BLOCK + 1), noise(tmp_path / "there", BLOCK + 1)
    before = sha256(target)
    assert before != sha256(source)
    flaky.push(source, str(target))
    assert sha256(target) == sha256(source)


@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_tree_arrives_whole(flaky, tmp_path, way):
    source, target = tmp_path / "here", tmp_path / "deep" / "there"
    noise(source / "weights" / "a.safetensors", 2 * BLOCK + 1)
    noise(source / "config.json", 300)
    (source / "empty folder").mkdir()
    (source / "empty.txt").touch()
    (source / os.fsdecode(b"caf\xe9")).write_bytes(b"no UTF-8")
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("config.json")
    report = flaky.push(source, str(target)) if way == "push" else flaky.pull(str(source), target)
    assert tree(target) == tree(source)
    assert report.files == 6
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755
    assert not (target / "link").is_symlink(), "what it points to has arrived"
    assert (target / "link").read_bytes() == (source / "config.json").read_bytes()


def test_progress_grows_to_the_end_and_tells_rate_and_time_left(flaky, tmp_path):
    source = noise(tmp_path / "here", 64 << 20)
    seen = []
    flaky.push(source, str(tmp_path / "there"), progress=seen.append)
    done = [one.done for one in seen]
    assert done == sorted(done)
    assert (seen[-1].done, seen[-1].total) == (64 << 20, 64 << 20)
    told = [one for one in seen if one.rate > 0]
    assert told[0].eta_s is not None


def test_without_room_nothing_is_written(flaky, tmp_path):
    source, target = noise(tmp_path / "here", 1000), tmp_path / "there"
    with pytest.raises(NoRoom, match=r"GB free") as short:
        flaky.push(source, str(target), headroom=10**18)
    assert short.value.need == 1000
    assert short.value.free > 0
    with pytest.raises(NoRoom):
        flaky.pull(str(source), target, headroom=10**18)
    assert [path.name for path in tmp_path.iterdir() if "there" in path.name] == []


def test_room_is_taken_before_the_first_block(flaky, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)]
    if subprocess.run(words, check=False, capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    refused = []

    def fill(_: object) -> None:
        try:
            (disk / "ballast").write_bytes(b"x" * (5 << 20))
        except OSError as error:
            refused.append(error.errno)

    try:
        with pytest.raises(NoRoom):
            flaky.push(noise(tmp_path / "here", 20 << 20), str(disk / "there"), headroom=0)
        source = noise(tmp_path / "small", 7 << 20)
        flaky.push(source, str(disk / "there"), headroom=0, progress=fill)
        assert refused, "others found the disk full, not we"
        assert sha256(disk / "there") == sha256(source)
        (disk / "there").unlink()
        fill(None)
        with pytest.raises(NoRoom):
            flaky.push(source, str(disk / "there"), headroom=0)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_source_that_changes_is_not_passed_on(flaky, tmp_path):
    source = noise(tmp_path / "here", 12 * BLOCK)  # more than is read beforehand

    def change(progress) -> None:
        if progress.phase == "copying":
            with source.open("ab") as file:
                file.write(b"more")

    with pytest.raises(TransferFailed, match="was changed while it was sent"):
        flaky.push(source, str(tmp_path / "there"), progress=change)
    with pytest.raises(TransferFailed, match="was changed while it was fetched"):
        flaky.pull(str(source), tmp_path / "there", progress=change)
    assert not (tmp_path / "there").exists()


def test_bad_ends_are_named(flaky, tmp_path):
    with pytest.raises(TransferFailed, match="no such file"):
        flaky.push(tmp_path / "nothing", str(tmp_path / "there"))
    with pytest.raises(TransferFailed, match="No such file"):
        flaky.pull(str(tmp_path / "nothing"), tmp_path / "there")
    with pytest.raises(TransferFailed, match="not an absolute path"):
        flaky.push(noise(tmp_path / "here", 5), "relative")
    (tmp_path / "folder").mkdir()
    with pytest.raises(TransferFailed, match="is a folder"):
        flaky.push(tmp_path / "here", str(tmp_path / "folder"))
    os.mkfifo(tmp_path / "folder" / "pipe")
    with pytest.raises(TransferFailed, match="neither a file nor a folder"):
        flaky.push(tmp_path / "folder", str(tmp_path / "there"))
    (tmp_path / "folder" / "pipe").unlink()
    (tmp_path / "folder" / "loop").symlink_to(tmp_path / "folder")
    with pytest.raises(TransferFailed, match="link to a folder"):
        flaky.push(tmp_path / "folder", str(tmp_path / "there"))


def test_many_small_files_share_commands(flaky, tmp_path):
    for number in range(400):
        noise(tmp_path / "here" / f"{number % 7}" / f"{number}.py", number)
    flaky.push(tmp_path / "here", str(tmp_path / "there"))
    calls = []
    run = flaky.flaky.run
    flaky.flaky.run = lambda argv, **more: calls.append(argv[-1]) or run(argv, **more)
    assert flaky.push(tmp_path / "here", str(tmp_path / "there")).sent == 0
    assert len(calls) < 8, calls
    assert tree(tmp_path / "there") == tree(tmp_path / "here")
