"""Builds a virtual environment: makes room for it, then venv, uv or pip, and what they said.

Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Dict, List, Mapping, NoReturn, Sequence

from remote.payloads.records import Refused, emit
from remote.payloads.venv_host import nearest_folder

if TYPE_CHECKING:
    import argparse

REGISTRY_SIGNS = (
    "Max retries exceeded", "NewConnectionError", "Temporary failure in name resolution",
    "Name or service not known", "Connection refused", "Network is unreachable", "Read timed out",
    "ConnectTimeoutError", "ProxyError", "SSLError", "from versions: none",
)  # fmt: skip
UNIT = "packages"
MANY = 20  # packages from which on fetching uv first is worth it
FULL = 16 << 20  # less is a full disk: venv hides what its own pip said


def take_lock(dest: Path) -> IO[str]:
    """One builder per environment. Children inherit the lock on purpose: a pip that outlives a
    killed builder still writes below dest, and nobody may start over while it does."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    handle = open(dest.parent / (".%s.venv-lock" % dest.name), "w", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        emit("phase", "another build of %s is running; waiting for it" % dest)
        fcntl.flock(handle, fcntl.LOCK_EX)
    os.set_inheritable(handle.fileno(), True)
    return handle


def users_of(dest: Path) -> List[int]:
    """Processes that have libraries of the environment mapped."""
    needle, pids = ("%s/" % dest).encode(), []
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            if needle in maps.read_bytes():
                pids.append(int(maps.parent.name))
        except OSError:
            continue
    return pids


def make_way(dest: Path, reason: str) -> None:
    """Moves what lies at dest aside; refuses folders that no build of ours can have left."""
    if not dest.exists() or not any(dest.iterdir()):
        return
    if not (dest / "pyvenv.cfg").is_file():
        raise Refused(
            "%s exists and is not a virtual environment" % dest,
            "choose another --dest or move it away",
        )
    pids = users_of(dest)
    if pids:
        raise Refused(
            "%s must be rebuilt, but processes run from it: %s"
            % (dest, ", ".join(map(str, pids[:5]))),
            "stop them first, or build at another --dest",
        )
    aside = dest.with_name("%s.aside-%d-%d" % (dest.name, int(time.time()), os.getpid()))
    os.rename(dest, aside)
    emit("phase", "%s cannot be used: %s; moved aside" % (dest, reason))
    shutil.rmtree(aside, ignore_errors=True)


class Builder:
    """Runs the commands of one build, under the lock that its children share."""

    def __init__(self, dest: Path, env: Mapping[str, str], lock_fd: int) -> None:
        self.dest = dest
        self.env = dict(env)
        self.lock_fd = lock_fd
        self.pip: List[str] = []
        self.uv: List[str] = []

    def step(self, argv: Sequence[str], what: str, total: int = 0) -> None:
        """One command, its output into the log, its packages into progress lines."""
        child = subprocess.Popen(
            argv, env=self.env, pass_fds=(self.lock_fd,), text=True, errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        tail: List[str] = []
        seen = 0
        assert child.stdout is not None
        for line in child.stdout:
            tail = [*tail[-200:], line.rstrip()]
            if total and line.startswith(("Collecting ", " + ")):  # pip's word, and uv's
                seen += 1
                emit("step", line.strip(), min(seen, total), total, unit=UNIT)
            if not line.startswith("  "):
                print(line, end="", flush=True)
        if child.wait() != 0:
            full = shutil.disk_usage(nearest_folder(self.dest)).free < FULL
            explain(what, "\n".join(tail), full=full)

    def install(self, words: Sequence[str], what: str, total: int) -> None:
        """By uv if there is one and it can; by pip otherwise, which explains what it cannot."""
        if self.uv:
            try:
                self.step([*self.uv, *words], what + " with uv", total)
                return
            except Refused as refusal:
                emit("phase", "%s; pip tries it" % refusal)
                self.uv = []
        self.step([*self.pip, *words], what, total)


def pip_of(dest: Path, env: Mapping[str, str]) -> List[str]:
    """The environment's own pip, about to install."""
    pip = [str(dest / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    pip += ["--no-input", "--retries", "3"]
    if "PIP_CACHE_DIR" not in env:  # a cache would hold every large wheel a second time
        pip.append("--no-cache-dir")
    return [*pip, "install", "--progress-bar", "off"]


def uv_of(args: argparse.Namespace, builder: Builder, count: int) -> List[str]:
    """uv about to install into the environment; empty when there is none, or it is not wanted."""
    if args.installer == "pip":
        return []
    found = shutil.which("uv", path=builder.env.get("PATH"))
    homes = [Path(args.executable).with_name("uv")]
    homes += [Path.home() / name / "uv" for name in (".local/bin", ".cargo/bin")]
    found = found or next((str(home) for home in homes if os.access(home, os.X_OK)), None)
    if found is None and (count >= MANY or args.installer == "uv"):
        emit("phase", "fetching uv")
        tools = args.dest / ".tmp" / "uv"
        argv = [*builder.pip, "--quiet", "--target", str(tools), "uv"]
        got = subprocess.run(
            argv, env=builder.env, pass_fds=(builder.lock_fd,), check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        found = str(tools / "bin" / "uv") if got.returncode == 0 else None
    if found is None:
        if args.installer == "uv":
            raise Refused("there is no uv here, and pip cannot fetch it", "let `installer` be auto")
        return []
    words = [found, "pip", "install", "--python", str(args.dest / "bin" / "python")]
    words += ["--no-progress", "--no-config", "--compile-bytecode"]
    # pip takes the best version of all indexes; uv would stop at the first that has the name.
    words += ["--index-strategy", "unsafe-best-match"]
    if "UV_CACHE_DIR" not in builder.env:
        words.append("--no-cache")
    return [*words, *pips_words(builder)]


def pips_words(builder: Builder) -> List[str]:
    """What pip's configuration and environment say of where packages come from, for uv."""
    pip = [*builder.pip[:3], "--disable-pip-version-check", "config", "list"]
    said = subprocess.run(pip, env=builder.env, capture_output=True, text=True, check=False).stdout
    values: Dict[str, str] = {}
    for line in said.splitlines():
        key, _, value = line.partition("=")
        scope, _, name = key.rpartition(".")
        if scope in ("global", "install", ":env:") and (name not in values or scope != "global"):
            values[name] = value.strip("'\"").replace("\\n", " ")
    words = []
    for name, flag in (
        ("index-url", "--default-index"), ("extra-index-url", "--index"),
        ("find-links", "--find-links"), ("constraint", "--constraint"),
        ("trusted-host", "--allow-insecure-host"),
    ):  # fmt: skip
        for value in values.get(name, "").split():
            if value.startswith("file://") and not os.path.isdir(value[len("file://") :]):
                continue  # pip warns of such an index; uv ends
            words += [flag, value]
    if values.get("no-index", "0").lower() in ("1", "true", "yes", "on"):
        words.append("--no-index")
    if "cert" in values:
        builder.env.setdefault("SSL_CERT_FILE", values["cert"])
    return words


def build(args: argparse.Namespace, pins: Mapping[str, str], builder: Builder) -> None:
    """venv, torch with its dependencies, the rest without resolving, the plugins."""
    emit("phase", "creating %s" % args.dest)
    builder.step([args.executable, "-m", "venv", str(args.dest)], "creating the environment")
    scratch = args.dest / ".tmp"  # on the disk that was measured, not in a small /tmp
    scratch.mkdir(exist_ok=True)
    builder.env["TMPDIR"] = str(scratch)
    builder.pip = pip_of(args.dest, builder.env)
    builder.uv = uv_of(args, builder, len(pins))
    index = ["--extra-index-url", args.index_torch] if args.index_torch else []
    if args.lock is None:
        emit(
            "phase",
            "installing %d packages and what they need" % len(pins),
            0,
            len(pins),
            unit=UNIT,
        )
        builder.install([*index, *args.package], "installing the list", len(pins))
    else:
        if "torch" in pins:
            emit("phase", "installing torch %s" % pins["torch"], 0, len(pins), unit=UNIT)
            torch = ["torch==" + pins["torch"], "-c", str(args.lock)]
            builder.install([*index, *torch], "installing torch", len(pins))
        emit("phase", "installing %d packages" % len(pins), 0, len(pins), unit=UNIT)
        locked = ["--no-deps", "-r", str(args.lock)]
        builder.install([*index, *locked], "installing the lock", len(pins))
    for plugin in args.plugin:
        copy = scratch / plugin.name  # setuptools leaves its build folders in the source
        shutil.copytree(plugin, copy)
        local = ["--no-build-isolation", "--no-deps", str(copy)]
        builder.step([*builder.pip, *local], "installing %s" % plugin.name)
    shutil.rmtree(scratch, ignore_errors=True)


def explain(what: str, output: str, *, full: bool) -> NoReturn:
    """One clear message from a failed command's output."""
    errors = [line for line in output.splitlines() if "rror" in line] or output.splitlines()
    last = errors[-1].strip() if errors else "no output"
    if full or "No space left on device" in output or "Disk quota exceeded" in output:
        raise Refused(
            "%s: No space left on device" % what,
            "free space or choose another disk; then run again",
        )
    if "ensurepip is not available" in output or "No module named ensurepip" in output:
        raise Refused(
            "%s: this Python has no ensurepip" % what,
            "install python3-venv (Debian, Ubuntu) and run again",
        )
    if any(sign in output for sign in REGISTRY_SIGNS):
        raise Refused(
            "%s: the package registry could not be reached (%s)" % (what, last),
            "check the host's network, proxy and pip configuration (pip config list); run again",
        )
    raise Refused("%s failed: %s" % (what, last), "the whole output is in the job's log")
