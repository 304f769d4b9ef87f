"""The environment payload: builds once, adopts after, and says clearly why it could not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import uv

from remote.payloads import venv, venv_build, venv_host, venv_pins
from remote.payloads.records import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPOSITORY = Path(__file__).resolve().parents[2]
PAYLOAD = REPOSITORY / "remote/payloads/venv.py"

BACKEND = """
import os, zipfile
assert "PYTHONPATH" not in os.environ, "what the payload runs with is none of theirs"
def build_wheel(directory, config_settings=None, metadata_directory=None):
    open("left-behind", "w").close()
    with zipfile.ZipFile(directory + "/plug-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("plug.py", "")
        info = "plug-1.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: plug\\nVersion: 1\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "plug-1-py3-none-any.whl"
"""


def wheel(folder: Path, name: str, version: str = "1.0", *, code: str = "") -> Path:
    """A wheel of one module, made by hand: tests need no registry."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as out:
        out.writestr(f"{name}.py", code)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        out.writestr(f"{info}/METADATA", metadata)
        out.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        out.writestr(f"{info}/RECORD", "")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A folder to build in, with wheels beside it."""

    root: Path

    @property
    def dest(self) -> Path:
        return self.root / "envs/one"

    @property
    def lock(self) -> Path:
        return self.root / "one.lock"

    def argv(self, *more: str, imports: str = "toy") -> list[str]:
        return [
            sys.executable, "-s", str(PAYLOAD), "--dest", str(self.dest), "--lock", str(self.lock),
            "--python", sys.executable, "--imports", imports,
            "--env", f"PIP_FIND_LINKS={self.root / 'wheels'}", *more,
        ]  # fmt: skip

    def env(self, **more: str) -> dict[str, str]:
        mine = {"RUNBOOK_OUT": str(self.root / "out.json")}
        mine |= {"RUNBOOK_PROGRESS": str(self.root / "progress.jsonl"), "PIP_NO_INDEX": "1"}
        mine |= {"PIP_CONFIG_FILE": os.devnull, "PYTHONPATH": str(REPOSITORY)}
        mine |= {"PATH": f"{Path(uv.find_uv_bin()).parent}:{os.environ['PATH']}"}
        return {k: v for k, v in os.environ.items() if not k.startswith("PIP_")} | mine | more

    def run(self, *more: str, imports: str = "toy", **env: str) -> subprocess.CompletedProcess[str]:
        argv = self.argv(*more, imports=imports)
        (self.root / "out.json").unlink(missing_ok=True)
        return subprocess.run(
            argv, env=self.env(**env), capture_output=True, text=True, check=False, timeout=120
        )

    def out(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.root / "out.json").read_text())
        return found

    def messages(self) -> list[str]:
        path = self.root / "progress.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["message"] for line in lines]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    wheel(tmp_path / "wheels", "toy")
    (tmp_path / "one.lock").write_text("# a comment\ntoy==1.0\n")
    return Bench(root=tmp_path)


def wait_until(met: Callable[[], bool], *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < deadline, "the awaited state did not come"
        time.sleep(0.02)


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_builds_then_adopts_then_rebuilds_what_lost_a_package(bench: Bench, installer: str) -> None:
    plugin, marker = bench.root / "plug", bench.dest / ".runbook-venv.json"
    plugin.mkdir()
    (plugin / "backend.py").write_text(BACKEND)
    (plugin / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    arguments = ["--plugin", str(plugin), "--imports-under", "30", "--installer", installer]
    built = bench.run(*arguments, imports="toy,plug")
    assert built.returncode == 0, built.stderr
    assert "pip tries it" not in built.stdout
    assert ("+ toy==1.0" in bench.messages()) is (installer == "uv")
    first, made = bench.out(), marker.stat().st_mtime_ns
    assert first["adopted"] is False
    assert first["path"] == str(bench.dest)
    assert not (bench.dest / ".tmp").exists()
    assert not (plugin / "left-behind").exists()

    assert bench.run(*arguments, imports="toy,plug").returncode == 0
    assert bench.out()["adopted"] is True
    assert marker.stat().st_mtime_ns == made, "nothing was built"
    assert bench.out()["lock"] == first["lock"]

    for path in bench.dest.rglob("toy-1.0.dist-info"):
        shutil.rmtree(path)
    wheel(bench.root / "wheels", "toy", code="raise RuntimeError('wrong CPU')")
    refused = bench.run(*arguments, imports="toy,plug")
    assert refused.returncode == 1
    assert any("it lacks toy; moved aside" in text for text in bench.messages())
    assert "RuntimeError: wrong CPU" in refused.stderr
    assert not marker.exists()
    assert not (bench.root / "out.json").exists()
    assert sorted(p.name for p in bench.dest.parent.iterdir()) == [".one.venv-lock", "one"]


def test_another_lock_or_an_unfinished_build_is_not_adopted(tmp_path: Path) -> None:
    assert venv.whole(tmp_path, "abc", {}, []) == "it was never finished"
    marker = tmp_path / venv.MARKER
    marker.write_text(json.dumps({"format": venv_pins.FORMAT, "lock": "abd"}))
    assert venv.whole(tmp_path, "abc", {}, []) == "it was made from another lock"
    assert "does not run" in venv.whole(tmp_path, "abd", {}, [])
    marker.write_text('{"format": "runb')
    assert venv.whole(tmp_path, "abd", {}, []) == "it was never finished"


def test_the_digest_names_pins_plugin_and_python(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    pins = {"a": "1", "b": "2"}
    digests = [venv_pins.digest_of(pins, [], "3.11.7"), venv_pins.digest_of(pins, [], "3.12.1")]
    assert venv_pins.digest_of({"b": "2", "a": "1"}, [], "3.11.9") == digests[0]
    for text in ("a", "b"):
        (plugin / "module.py").write_text(text)
        digests.append(venv_pins.digest_of(pins, [plugin], "3.11.7"))
    digests.append(venv_pins.digest_of({"a": "1", "b": "3"}, [plugin], "3.11.7"))
    assert len(set(digests)) == len(digests)


def test_imports_that_are_slow_are_refused(tmp_path: Path) -> None:
    slow = tmp_path / "bin/python"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    argv = ["--dest", str(tmp_path), "--lock", "x", "--imports", "toy", "--imports-under", "0.2"]
    with pytest.raises(Refused, match=r"longer than 0\.2 s"):
        venv.prove_imports(venv.arguments(argv), os.environ)


class Holding(BaseHTTPRequestHandler):
    """A registry that takes a request and answers only when it is released."""

    asked = threading.Event()
    release = threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.release.wait(60)
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Quiet."""


@pytest.fixture
def holding() -> Iterator[str]:
    Holding.asked.clear()
    Holding.release.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Holding)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    Holding.release.set()
    server.shutdown()
    server.server_close()
    thread.join()


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_nobody_starts_over_while_a_killed_builders_pip_lives(bench: Bench, holding: str) -> None:
    env = bench.env(PIP_NO_INDEX="", PIP_INDEX_URL=holding)
    first = subprocess.Popen(
        bench.argv(), env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert Holding.asked.wait(60)
    (pip,) = children_of(first.pid)
    first.kill()
    first.wait()

    with subprocess.Popen(
        bench.argv(), env=bench.env(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as second:
        wait_until(lambda: any("waiting for it" in text for text in bench.messages()))
        assert second.poll() is None
        os.kill(pip, signal.SIGKILL)
        assert second.wait(60) == 0
    assert bench.out()["adopted"] is False
    assert any("it was never finished; moved aside" in text for text in bench.messages())


def test_an_unreachable_registry_is_named(bench: Bench) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
        shutil.rmtree(bench.root / "wheels")
        refused = bench.run(PIP_NO_INDEX="", PIP_INDEX_URL=url)
    assert refused.returncode == 1
    assert "the package registry could not be reached" in refused.stderr
    assert "next: check the host's network" in refused.stderr
    assert not (bench.dest / ".runbook-venv.json").exists()


def test_a_python_that_is_too_old_is_refused_before_anything_is_made(bench: Bench) -> None:
    old = bench.root / "python3.8"
    old.write_text('#!/bin/sh\necho \'["/usr/bin/python3.8", "3.8.18", "glibc 2.31"]\'\n')
    old.chmod(0o755)
    refused = bench.run("--python", str(old))
    assert refused.returncode == 1
    assert "Python 3.11 or later is needed" in refused.stderr
    assert "is 3.8.18" in refused.stderr
    assert not bench.dest.parent.exists()


def test_a_folder_that_is_no_environment_is_left_alone(bench: Bench) -> None:
    bench.dest.mkdir(parents=True)
    (bench.dest / "thesis.txt").write_text("mine")
    refused = bench.run()
    assert refused.returncode == 1
    assert "is not a virtual environment" in refused.stderr
    assert (bench.dest / "thesis.txt").read_text() == "mine"


def test_too_little_room_is_known_before_the_download(bench: Bench) -> None:
    refused = bench.run("--require-free", str(1 << 60))
    assert refused.returncode == 1
    assert "No space left on device" in refused.stderr
    assert not bench.dest.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_disk_that_fills_up_leaves_nothing_that_looks_whole(bench: Bench) -> None:
    small = bench.dest.parent
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(small)], check=True)
    try:
        refused = bench.run("--require-free", "1")
        marker = (bench.dest / ".runbook-venv.json").exists()
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)
    assert refused.returncode == 1
    assert "No space left on device" in refused.stderr
    assert not marker


@pytest.mark.parametrize(
    "line", ["toy>=1.0", "toy", "--index-url x", "toy==1.0; python_version>'3'"]
)
def test_a_lock_holds_pins_only(bench: Bench, line: str) -> None:
    bench.lock.write_text(line + "\n")
    refused = bench.run()
    assert refused.returncode == 1
    assert "line 1 is not a pin" in refused.stderr


def test_network_mounts_are_found_by_the_mount_table(tmp_path: Path) -> None:
    table = tmp_path / "mounts"
    table.write_text(
        "/dev/vda / ext4 rw 0 0\nserver:/x /net nfs4 rw 0 0\n"
        "tmpfs /net/local tmpfs rw 0 0\nme@h: /far\\040away fuse.sshfs rw 0 0\n"
    )
    kinds = {
        path: venv_host.mount_type(Path(path), str(table))
        for path in ("/network/v", "/net/v", "/net/local/v", "/far away/v")
    }
    assert kinds == {
        "/network/v": "ext4", "/net/v": "nfs4", "/net/local/v": "tmpfs", "/far away/v": "fuse.sshfs"
    }  # fmt: skip
    assert [venv_host.is_network(kind) for kind in kinds.values()] == [False, True, False, True]


def test_sglang_asks_for_a_newer_c_library(tmp_path: Path) -> None:
    args = venv.arguments(["--dest", str(tmp_path), "--lock", "x", "--require-free", "1"])
    venv_host.check_host(args, {"sglang": "1"}, "glibc 2.34")
    venv_host.check_host(args, {"toy": "1"}, "glibc 2.31")
    with pytest.raises(Refused, match=r"this host has glibc 2\.31"):
        venv_host.check_host(args, {"sglang": "1"}, "glibc 2.31")


def test_an_environment_in_use_is_not_pulled_away(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"x" * 4096)
    code = (
        f"import mmap, sys; f = open({str(library)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0);"
        "print(flush=True); sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as user:
        assert user.stdout is not None
        user.stdout.readline()
        assert venv_build.users_of(tmp_path) == [user.pid]
        with contextlib.suppress(BrokenPipeError):
            user.communicate()
    assert venv_build.users_of(tmp_path) == []


def test_what_pip_is_told_uv_is_told(bench: Bench) -> None:
    links, index = bench.root / "wheels", bench.root / "index"
    config = bench.root / "pip.conf"
    config.write_text(
        f"[global]\nindex-url = https://mirror/simple\nfind-links =\n    {links}\n    /more\n"
        f"extra-index-url = file://{index} https://other/simple\nconstraint = /etc/pins.txt\n"
    )
    env = {**os.environ, "PIP_CONFIG_FILE": str(config), "PIP_INDEX_URL": "https://nearer/simple"}
    for name in ("PIP_FIND_LINKS", "PIP_CERT", "PIP_NO_INDEX"):
        env.pop(name, None)
    builder = venv_build.Builder(bench.dest, env, 0)
    builder.pip = [sys.executable, "-m", "pip"]
    words = venv_build.pips_words(builder)
    assert words == [
        "--default-index", "https://nearer/simple", "--index", "https://other/simple",
        "--find-links", str(links), "--find-links", "/more", "--constraint", "/etc/pins.txt",
    ]  # fmt: skip


def test_what_uv_cannot_pip_does(bench: Bench) -> None:
    broken = bench.root / "bin"
    broken.mkdir()
    (broken / "uv").write_text("#!/bin/sh\necho no such thing >&2\nexit 2\n")
    (broken / "uv").chmod(0o755)
    built = bench.run(PATH=f"{broken}:{os.environ['PATH']}")
    assert built.returncode == 0, built.stderr
    assert any("pip tries it" in text for text in bench.messages())
    assert bench.out()["adopted"] is False


def test_a_list_instead_of_a_lock(bench: Bench) -> None:
    argv = [word for word in bench.argv() if word not in ("--lock", str(bench.lock))]

    def run(*packages: str) -> subprocess.CompletedProcess[str]:
        words = [word for package in packages for word in ("--package", package)]
        return subprocess.run(
            [*argv, *words], env=bench.env(), capture_output=True, text=True, check=False
        )

    built = run("toy>=0.5")
    assert built.returncode == 0, built.stderr
    assert run("toy>=0.5").returncode == 0
    assert bench.out()["adopted"] is True
    refused = run("toy; rm -rf")
    assert refused.returncode == 1
    assert "is no requirement" in refused.stderr
    assert run().returncode == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no NVIDIA driver"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue", "550.54.15 is too old"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release", ""),
    ],
)
def test_a_driver_that_will_not_do_is_known_before_the_download(
    tmp_path: Path, text: str, said: str
) -> None:
    if text:
        (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
        (tmp_path / "proc/driver/nvidia/version").write_text(text)
    pins = {"torch": "2.13.0", "nvidia-cuda-runtime": "13.0.96"}
    args = venv.arguments(["--dest", str(tmp_path), "--lock", "x", "--prove-cuda"])
    driver = venv_host.driver_of(tmp_path)
    if not said:
        venv_host.check_driver(args, pins, driver)
        return
    with pytest.raises(Refused, match=said):
        venv_host.check_driver(args, pins, driver)
