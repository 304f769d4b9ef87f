"""The model copy payload: memory if it fits everywhere, whole or not there, safe to run again."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remote.payloads import model_copy, model_place
from runbook.bundle import bundle_files

PAYLOAD = "remote/payloads/model_copy.py"
MIB = 1 << 20


@pytest.fixture
def payload() -> Any:
    return model_copy


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    """As it lies on a host, without anything else of ours."""
    for name, content in bundle_files("payloads").items():
        path = tmp_path / "shipped" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "shipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A pretended host: what /proc and /sys say, and a folder that counts as memory."""

    root: Path

    @property
    def source(self) -> Path:
        return self.root / "model"

    @property
    def shm(self) -> Path:
        return self.root / "shm/model"

    @property
    def disk(self) -> Path:
        return self.root / "disk/model"

    def says(self, *, available: int, kind: str = "tmpfs") -> None:
        shm = str(self.root / "shm").replace(" ", "\\040")
        files = {
            "proc/mounts": f"/dev/vda / ext4 rw 0 0\nx {shm} {kind} rw 0 0\n",
            "proc/meminfo": f"MemTotal: 99999999 kB\nMemAvailable: {available // 1024} kB\n",
            "proc/self/cgroup": "0::/pod/box\n",
        }
        for name, text in files.items():
            self.write(name, text)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def argv(self, *more: str) -> list[str]:
        folders = ["--source", str(self.source), "--shm", str(self.shm), "--disk", str(self.disk)]
        return [*folders, "--headroom", str(MIB), *more]

    def copy(self, payload: Any, *more: str) -> dict[str, Any]:
        found: dict[str, Any] = payload.make(payload.arguments(self.argv(*more)), self.root)
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(root=tmp_path)
    made.says(available=64 * MIB)
    (tmp_path / "shm").mkdir()
    source = made.source / "tokenizer"
    source.mkdir(parents=True)
    big = random.Random(5).randbytes(20 * MIB + 7)  # three ranges, the last one short
    (made.source / "model.safetensors").write_bytes(big)
    (made.source / "empty.txt").write_bytes(b"")
    (source / "vocab.json").write_text("{}")
    (made.source / ".cache").mkdir()
    (made.source / ".cache/lock").write_text("no part of a model")
    return made


def claim(folder: Path) -> None:
    """Writes the manifest that a fetch leaves."""
    files = [p for p in sorted(folder.rglob("*")) if p.is_file() and ".cache" not in p.parts]
    entries = [
        {
            "path": str(p.relative_to(folder)),
            "size": p.stat().st_size,
            "sha256": hashlib.sha256(p.read_bytes()).hexdigest(),
        }
        for p in files
        if p.name != "manifest.json"
    ]
    (folder / "manifest.json").write_text(json.dumps({"files": entries}))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes()
        for p in folder.rglob("*")
        if p.is_file() and ".cache" not in p.parts and p.name != "manifest.json"
    }


def test_copies_into_memory_and_then_finds_the_copy(machine: Machine, payload: Any) -> None:
    first = machine.copy(payload)
    assert (first["where"], first["path"]) == ("shm", str(machine.shm))
    assert "fits in memory" in first["reason"]
    assert first["bytes"] == 20 * MIB + 9
    assert contents(machine.shm) == contents(machine.source)
    manifest = json.loads((machine.shm / "manifest.json").read_text())
    for entry in manifest["files"]:
        data = (machine.source / entry["path"]).read_bytes()
        assert (entry["size"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())

    machine.says(available=0)  # it is there: no room is needed any more
    stamp = (machine.shm / "manifest.json").stat().st_mtime_ns
    again = machine.copy(payload)
    assert (again["where"], again["reason"]) == ("shm", "was already there")
    assert (machine.shm / "manifest.json").stat().st_mtime_ns == stamp


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m.says(available=21 * MIB), "memory has 0.0 GiB free"),
        (lambda m: m.says(available=99 * MIB, kind="ext4"), "is on ext4, not in memory"),
        (lambda m: limit(m, "pod", 40 * MIB, used=25 * MIB), "memory has 0.0 GiB free"),
        (lambda m: limit(m, "pod/box", 40 * MIB, used=25 * MIB), "memory has 0.0 GiB free"),
    ],
    ids=["machine", "no tmpfs", "outer group", "own group"],
)
def test_goes_to_disk_and_says_why(
    machine: Machine, payload: Any, change: Any, reason: str
) -> None:
    change(machine)
    found = machine.copy(payload)
    assert found["where"] == "disk"
    assert reason in found["reason"]
    assert contents(machine.disk) == contents(machine.source)
    assert not machine.shm.exists()


def limit(machine: Machine, group: str, maximum: int, *, used: int, cache: int = 0) -> None:
    base = f"sys/fs/cgroup/{group}/"
    machine.write(base + "memory.max", f"{maximum}\n")
    machine.write(base + "memory.current", f"{used}\n")
    machine.write(base + "memory.stat", f"anon 1\ninactive_file {cache}\n")


def test_page_cache_in_a_container_counts_as_free(machine: Machine, payload: Any) -> None:
    limit(machine, "pod/box", 40 * MIB, used=39 * MIB, cache=30 * MIB)
    assert machine.copy(payload)["where"] == "shm"


def test_limits_of_the_older_control_groups_count(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "7:cpu,cpuacct:/a\n5:memory:/docker/1\n")
    base = "sys/fs/cgroup/memory/docker/1/"
    machine.write(base + "memory.limit_in_bytes", f"{10 * MIB}\n")
    machine.write(base + "memory.usage_in_bytes", f"{MIB}\n")
    machine.write(base + "memory.stat", "total_inactive_file 0\n")
    assert model_place.free_memory(machine.root) == 9 * MIB
    machine.write(base + "memory.limit_in_bytes", f"{0x7FFFFFFFFFFFF000}\n")
    assert model_place.free_memory(machine.root) == 64 * MIB


def test_memory_that_fills_up_meanwhile_is_given_back(
    machine: Machine, payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.posix_fallocate

    def full(handle: int, offset: int, size: int) -> None:
        path = Path(f"/proc/self/fd/{handle}").readlink()
        if path.is_relative_to(machine.shm) and size > MIB:
            raise OSError(28, "No space left on device")
        real(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    found = machine.copy(payload)
    assert (found["where"], found["reason"]) == ("disk", "memory filled up while copying")
    assert contents(machine.disk) == contents(machine.source)
    assert contents(machine.shm) == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_small_memory_file_system_is_refused_before_it_fills(
    machine: Machine, payload: Any
) -> None:
    shm = machine.root / "shm"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(shm)], check=True)
    try:
        found = machine.copy(payload)
        assert list(shm.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", str(shm)], check=True)
    assert found["where"] == "disk"
    assert str(shm) in found["reason"]


def test_a_resumed_copy_keeps_what_proves_right(machine: Machine, payload: Any) -> None:
    claim(machine.source)
    machine.copy(payload)
    (machine.shm / "manifest.json").unlink()
    kept = (machine.shm / "model.safetensors").stat().st_ino
    (machine.shm / "tokenizer/vocab.json").write_text("[]")  # same size, other content
    (machine.shm / "empty.txt").unlink()
    (machine.shm / "empty.txt.partial").write_text("torn")
    machine.says(available=MIB)  # only what is missing is needed
    machine.copy(payload, "--headroom", "0")
    assert (machine.shm / "model.safetensors").stat().st_ino == kept
    assert contents(machine.shm) == contents(machine.source)


def test_a_damaged_source_is_named_and_not_copied(machine: Machine, payload: Any) -> None:
    claim(machine.source)
    path = machine.source / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[9 * MIB] ^= 1
    path.write_bytes(data)
    with pytest.raises(payload.Refused, match="is damaged: its sha256 is"):
        machine.copy(payload)
    assert not (machine.shm / "model.safetensors").exists()
    assert not (machine.shm / "manifest.json").exists()


def test_a_source_that_lacks_a_file_or_is_in_the_making_is_refused(
    machine: Machine, payload: Any
) -> None:
    claim(machine.source)
    (machine.source / "empty.txt").unlink()
    with pytest.raises(payload.Refused, match=r"lacks empty\.txt"):
        machine.copy(payload)
    (machine.source / "empty.txt.partial").write_bytes(b"")
    with pytest.raises(payload.Refused, match="still being written"):
        machine.copy(payload)


def test_other_models_and_strange_files_are_left_alone(machine: Machine, payload: Any) -> None:
    machine.copy(payload)
    before = contents(machine.shm)
    (machine.source / "tokenizer/vocab.json").write_text("another model's")
    with pytest.raises(payload.Refused, match="whole copy of something else"):
        machine.copy(payload)
    assert contents(machine.shm) == before
    assert machine.copy(payload, "--replace")["where"] == "shm"
    assert contents(machine.shm) == contents(machine.source)

    (machine.shm / "manifest.json").unlink()
    (machine.shm / "thesis.txt").write_text("mine")
    with pytest.raises(payload.Refused, match=r"not the model's: thesis\.txt"):
        machine.copy(payload)


def test_a_model_on_the_fallback_disk_is_used_where_it_is(machine: Machine, payload: Any) -> None:
    found = machine.copy(payload, "--no-shm", "--disk", str(machine.source))
    assert (found["where"], found["path"]) == ("disk", str(machine.source))
    assert not (machine.source / "manifest.json").exists()


def test_the_disk_must_hold_it_too(
    machine: Machine, payload: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.says(available=0)
    usage = payload.shutil.disk_usage(machine.root)
    monkeypatch.setattr(payload.shutil, "disk_usage", lambda _: usage._replace(free=MIB))
    with pytest.raises(payload.Refused, match="No space left on device would follow"):
        machine.copy(payload)
    assert not machine.disk.exists()


def test_killed_at_any_moment_the_copy_is_whole_or_not_there(
    machine: Machine, shipped: Path
) -> None:
    claim(machine.source)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RUNBOOK")}
    env |= {"RUNBOOK_OUT": str(machine.root / "out.json")}
    env |= {"RUNBOOK_PROGRESS": str(machine.root / "progress.jsonl")}
    env |= {"PYTHONPATH": str(shipped)}
    argv = [sys.executable, str(shipped / PAYLOAD), *machine.argv("--no-shm")]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "env": env}
    whole = machine.disk / "manifest.json"
    for _ in range(3):
        with subprocess.Popen(argv, **quiet) as copier:
            deadline = time.monotonic() + 60
            while not any(machine.disk.rglob("*.partial")) and copier.poll() is None:
                assert time.monotonic() < deadline
            copier.send_signal(signal.SIGKILL)
        if whole.exists():
            assert contents(machine.disk) == contents(machine.source)
    assert subprocess.run(argv, check=False, **quiet).returncode == 0
    assert contents(machine.disk) == contents(machine.source)
    assert not list(machine.disk.rglob("*.partial"))
    out = json.loads((machine.root / "out.json").read_text())
    assert set(out) == {"path", "where", "reason", "bytes", "seconds"}
    lines = (machine.root / "progress.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["kind"] == "done"
