"""Makes one virtual environment from a lock file or a list, or adopts the one that is there.

Runs on the host as a job payload: standard library only, Python 3.8 or later, whatever Python the
environment itself gets. A whole environment carries a marker, written last; one without it is
never taken for whole. It is built at its final path, because scripts inside name that path.

uv installs where it is to be had, told what pip's own configuration says of indexes, wheel folders
and constraints, which it does not read. What uv cannot do, pip does, and says what is wrong.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple

MARKER = ".runbook-venv.json"
FORMAT = "runbook-venv/1"
SGLANG_GLIBC = (2, 34)
CANDIDATES = (sys.executable, "python3.12", "python3.11", "python3.13", "python3")
NETWORK_TYPES = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "glusterfs", "9p", "beegfs", "gpfs",
     "afs", "ncpfs", "virtiofs")
)  # fmt: skip
REGISTRY_SIGNS = (
    "Max retries exceeded", "NewConnectionError", "Temporary failure in name resolution",
    "Name or service not known", "Connection refused", "Network is unreachable", "Read timed out",
    "ConnectTimeoutError", "ProxyError", "SSLError", "from versions: none",
)  # fmt: skip
VERSION = r"[0-9][\w.+!-]*"
REQUIREMENT = r"([\w.-]+)(\[[\w,.-]+\])?\s*(((==|~=|>=|<=|!=|>|<)\s*[\w.*+!-]+,?\s*)*)"
DRIVERS = {"12": 525, "13": 580}  # the oldest that run programs of this CUDA
MANY = 20  # packages from which on fetching uv first is worth it
GIB = 1 << 30
FULL = 16 << 20  # less is a full disk: venv hides what its own pip said


class Refused(Exception):
    """A reason why there is no environment, and what to do about it."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


# -- what the host tells the operator --------------------------------------------------------------


def progress(
    kind: str, message: str, done: Optional[int] = None, total: Optional[int] = None
) -> None:
    """One progress line; also on stdout, which is the job's log."""
    print(message, flush=True)
    path = os.environ.get("RUNBOOK_PROGRESS")
    if not path:
        return
    line = {
        "v": 1, "kind": kind, "done": done, "total": total, "unit": "packages",
        "message": message, "metrics": {}, "t": time.time(),
    }  # fmt: skip
    with open(path, "a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Aside, fsync, rename: a reader sees the old file or the whole new one."""
    aside = path.with_name(path.name + ".%d.partial" % os.getpid())
    with open(aside, "w", encoding="utf-8") as out:
        json.dump(value, out, indent=1, sort_keys=True)
        out.flush()
        os.fsync(out.fileno())
    os.replace(aside, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- facts before any download ---------------------------------------------------------------------


def pins_of(lock: Path) -> Dict[str, str]:
    """The `name==version` lines of a lock file."""
    try:
        text = lock.read_text(encoding="utf-8")
    except OSError as error:
        raise Refused(
            "lock file %s: %s" % (lock, error.strerror), "name a file that exists"
        ) from None
    pins: Dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        name, found, version = line.partition("==")
        if not found or not re.fullmatch(r"[\w.-]+", name) or not re.fullmatch(VERSION, version):
            raise Refused(
                "%s line %d is not a pin: %r" % (lock, number, line),
                "write name==version, one a line",
            )
        pins[plain(name)] = version
    if not pins:
        raise Refused("%s pins nothing" % lock, "was the file copied whole?")
    return pins


def list_of(packages: Sequence[str]) -> Dict[str, str]:
    """The names of a list of requirements, with the version of those that are pinned."""
    found = {}
    for package in packages:
        match = re.fullmatch(REQUIREMENT, package)
        if match is None:
            raise Refused("%r is no requirement" % package, "write NAME or NAME>=VERSION")
        pin = re.fullmatch("==\\s*(%s)" % VERSION, match[3].strip())
        found[plain(match[1])] = pin[1] if pin else ""
    return found


def cuda_of(pins: Mapping[str, str]) -> str:
    """The CUDA that the packages were made for, such as "13"; empty for none."""
    runtime = pins.get("nvidia-cuda-runtime", "").partition(".")[0]
    return runtime or ("12" if "nvidia-cuda-runtime-cu12" in pins else "")


def driver_of(root: Path = Path("/")) -> str:
    """The version of the NVIDIA driver, by what the kernel says; empty where there is none."""
    try:
        text = (root / "proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"\b(\d{3,}\.\d+(\.\d+)?)\b", text)
    return found[1] if found else ""


def check_driver(args: argparse.Namespace, pins: Mapping[str, str], driver: str) -> None:
    """A GPU is of no use without a driver that is new enough: known before any download."""
    if not args.prove_cuda:
        return
    if not driver:
        raise Refused(
            "this host has no NVIDIA driver: torch would see no CUDA device",
            "take a machine with a GPU and its driver, or set `prove_cuda: false`",
        )
    cuda = cuda_of(pins)
    if numbers(driver)[0] < DRIVERS.get(cuda, 0):
        raise Refused(
            "the NVIDIA driver %s is too old for CUDA %s, which needs %d or later"
            % (driver, cuda, DRIVERS[cuda]),
            "take a newer image of the machine, or a lock with builds for an older CUDA",
        )


def plain(name: str) -> str:
    """A distribution's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def digest_of(
    pins: Mapping[str, str], plugins: Sequence[Path], version: str, packages: Sequence[str] = ()
) -> str:
    """Names all that decides what ends up in the environment; a lock's comments do not."""
    seen = hashlib.sha256(("%s python %s\n" % (FORMAT, version.rpartition(".")[0])).encode())
    seen.update(json.dumps(sorted(packages) or sorted(pins.items())).encode())
    for plugin in plugins:
        for path in sorted(p for p in plugin.rglob("*") if p.is_file()):
            if "__pycache__" not in path.parts:
                seen.update(("\n%s\n" % path.relative_to(plugin)).encode())
                seen.update(path.read_bytes())
    return seen.hexdigest()


def interpreter(wanted: str, minimum: str) -> Tuple[str, str, str]:
    """(executable, version, C library) of the Python to build with; "auto" looks for one."""
    found: List[str] = []
    script = (
        "import json, os, platform, sys;"
        "print(json.dumps([sys.executable, platform.python_version(),"
        " os.confstr('CS_GNU_LIBC_VERSION') if 'CS_GNU_LIBC_VERSION' in os.confstr_names else '']))"
    )
    for name in CANDIDATES if wanted == "auto" else (wanted,):
        path = shutil.which(name)
        if path is None:
            continue
        probe = subprocess.run(
            [path, "-I", "-c", script], capture_output=True, text=True, check=False
        )
        if probe.returncode != 0:  # version managers put commands on PATH that then refuse
            continue
        executable, version, libc = json.loads(probe.stdout)
        found.append("%s is %s" % (name, version))
        if numbers(version)[:2] >= numbers(minimum)[:2]:
            return executable, version, libc or ""
    raise Refused(
        "Python %s or later is needed for %s; found: %s"
        % (minimum, "this environment" if wanted == "auto" else wanted, ", ".join(found) or "none"),
        "install it on the host (Debian, Ubuntu: python3.12 and python3.12-venv) or name another "
        "interpreter with --python",
    )


def numbers(version: str) -> Tuple[int, ...]:
    """`3.11.7` or `glibc 2.36` as comparable numbers."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def mount_type(path: Path, mounts: str = "/proc/mounts") -> str:
    """The file system that holds path, by the mount table alone: a dead mount must not hang us."""
    best, kind = "", ""
    for line in Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        point = fields[1].encode().decode("unicode_escape") if len(fields) > 2 else ""
        inside = point == "/" or str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    return kind


def is_network(kind: str) -> bool:
    """FUSE counts as one: nearly all of them are, and none is fast at ten thousand small files."""
    return kind in NETWORK_TYPES or kind.startswith("fuse.") or kind == "fuse"


def nearest_folder(path: Path) -> Path:
    """The first parent that exists."""
    return next(p for p in (path, *path.parents) if p.is_dir())


def check_host(args: argparse.Namespace, pins: Mapping[str, str], libc: str) -> None:
    """Everything that can be known to fail, before a byte is fetched."""
    if "sglang" in pins and libc and numbers(libc)[:2] < SGLANG_GLIBC:
        raise Refused(
            "SGLang needs glibc 2.34 or later; this host has %s" % libc,
            "take a newer image (Ubuntu 22.04, Debian 12 or later)",
        )
    check_driver(args, pins, driver_of())
    kind = mount_type(Path(os.path.realpath(args.dest)))
    if is_network(kind) and not args.allow_network_mount:
        raise Refused(
            "%s is on a %s mount: imports from there take minutes and may hang" % (args.dest, kind),
            "choose a folder on a local disk, or pass --allow-network-mount",
        )
    if is_network(kind):
        progress("phase", "warning: %s is on a %s mount; imports will be slow" % (args.dest, kind))
    check_free(args, pins)


def check_free(args: argparse.Namespace, pins: Mapping[str, str]) -> None:
    """The disk must hold what is downloaded and what is unpacked."""
    needed = args.require_free
    if needed is None:
        needed = 4 * GIB if "torch" in pins else GIB // 2
    folder = nearest_folder(args.dest)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise Refused(
            "%s has %.1f GiB free, %.1f GiB are needed (No space left on device would follow)"
            % (folder, free / GIB, needed / GIB),
            "free space there or choose another disk with --dest",
        )


# -- proof -----------------------------------------------------------------------------------------

LOOK = """
import importlib.metadata as metadata, importlib.util as util, json, re, sys
have = {}
for found in metadata.distributions():
    have[re.sub(r"[-_.]+", "-", found.metadata["Name"]).lower()] = found.version
gone = [m for m in json.loads(sys.argv[1]) if util.find_spec(m) is None]
print(json.dumps([have, gone]))
"""


def whole(dest: Path, digest: str, pins: Mapping[str, str], imports: Sequence[str]) -> str:
    """Why the environment at dest cannot be adopted; empty when it can.

    Versions and module files are looked at, nothing is imported: torch alone would take seconds.
    """
    try:
        marker = json.loads((dest / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "it was never finished"
    if (
        not isinstance(marker, dict)
        or marker.get("format") != FORMAT
        or marker.get("lock") != digest
    ):
        return "it was made from another lock"
    tops = json.dumps([name.split(".")[0] for name in imports])
    try:
        look = subprocess.run(
            [str(dest / "bin" / "python"), "-I", "-c", LOOK, tops],
            capture_output=True, text=True, check=True, timeout=60,
        )  # fmt: skip
        have, gone = json.loads(look.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return "its interpreter does not run (%s)" % type(error).__name__
    wrong = [
        n for n, v in pins.items()
        if n not in have or (v and have[n].split("+")[0] != v.split("+")[0])
    ]  # fmt: skip
    if wrong or gone:
        return "it lacks " + ", ".join(sorted(wrong + gone)[:5])
    return ""


def prove_imports(args: argparse.Namespace, env: Mapping[str, str]) -> float:
    """Imports in a fresh interpreter, within the time given; seconds it took."""
    statements = ["import " + ", ".join(args.imports)] if args.imports else []
    if args.prove_cuda:
        statements.append(
            "import torch; assert torch.cuda.is_available(), 'torch sees no CUDA device'"
        )
    if not statements:
        return 0.0
    began = time.monotonic()
    try:
        run = subprocess.run(
            [str(args.dest / "bin" / "python"), "-I", "-c", "; ".join(statements)],
            env=dict(env), capture_output=True, text=True, check=False, timeout=args.imports_under,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise Refused(
            "importing %s took longer than %g s" % (", ".join(args.imports), args.imports_under),
            "is the disk slow or the host busy? try again, or raise --imports-under",
        ) from None
    if run.returncode != 0:
        last = (run.stderr.strip().splitlines() or ["no message"])[-1]
        raise Refused(
            "imports fail in %s: %s" % (args.dest, last),
            "the lock does not fit this host; the whole trace is in the job's log\n" + run.stderr,
        )
    return time.monotonic() - began


# -- building --------------------------------------------------------------------------------------


def take_lock(dest: Path) -> IO[str]:
    """One builder per environment. Children inherit the lock on purpose: a pip that outlives a
    killed builder still writes below dest, and nobody may start over while it does."""
    dest.parent.mkdir(parents=True, exist_ok=True)
    handle = open(dest.parent / (".%s.venv-lock" % dest.name), "w", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress("phase", "another build of %s is running; waiting for it" % dest)
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
    progress("phase", "%s cannot be used: %s; moved aside" % (dest, reason))
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
                progress("step", line.strip(), min(seen, total), total)
            elif not line.startswith("  "):
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
                progress("phase", "%s; pip tries it" % refusal)
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
        progress("phase", "fetching uv")
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
    progress("phase", "creating %s" % args.dest)
    builder.step([args.executable, "-m", "venv", str(args.dest)], "creating the environment")
    scratch = args.dest / ".tmp"  # on the disk that was measured, not in a small /tmp
    scratch.mkdir(exist_ok=True)
    builder.env["TMPDIR"] = str(scratch)
    builder.pip = pip_of(args.dest, builder.env)
    builder.uv = uv_of(args, builder, len(pins))
    index = ["--extra-index-url", args.index_torch] if args.index_torch else []
    if args.lock is None:
        progress("phase", "installing %d packages and what they need" % len(pins), 0, len(pins))
        builder.install([*index, *args.package], "installing the list", len(pins))
    else:
        if "torch" in pins:
            progress("phase", "installing torch %s" % pins["torch"], 0, len(pins))
            torch = ["torch==" + pins["torch"], "-c", str(args.lock)]
            builder.install([*index, *torch], "installing torch", len(pins))
        progress("phase", "installing %d packages" % len(pins), 0, len(pins))
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


def make(args: argparse.Namespace) -> Dict[str, Any]:
    """Adopts or builds; the result record."""
    began = time.monotonic()
    pins = pins_of(args.lock) if args.lock is not None else list_of(args.package)
    if args.prove_cuda is None:  # where there is a GPU and the packages are for one
        args.prove_cuda = "torch" in pins and bool(cuda_of(pins)) and bool(driver_of())
    for plugin in args.plugin:
        if not plugin.is_dir():
            raise Refused("plugin folder %s is not there" % plugin, "was it shipped to this host?")
    args.executable, version, libc = interpreter(args.python, args.min_python)
    digest = digest_of(pins, args.plugin, version, args.package)
    env = {**os.environ, **dict(pair.partition("=")[::2] for pair in args.env)}
    with take_lock(args.dest) as lock:
        reason = whole(args.dest, digest, pins, args.imports)
        if reason:
            check_host(args, pins, libc)
            make_way(args.dest, reason)
            build(args, pins, Builder(args.dest, env, lock.fileno()))
        if reason or args.imports_under is not None or args.prove_cuda:
            progress("phase", "proving the imports")
            prove_imports(args, env)
        if reason:
            finish(args, pins, digest, version)
    seconds = round(time.monotonic() - began, 2)
    progress("done", "%s %s" % (args.dest, "built" if reason else "adopted"), len(pins), len(pins))
    return {
        "path": str(args.dest), "python": str(args.dest / "bin" / "python"), "lock": digest,
        "version": version, "adopted": not reason, "seconds": seconds,
    }  # fmt: skip


def finish(args: argparse.Namespace, pins: Mapping[str, str], digest: str, version: str) -> None:
    """The marker, after everything it vouches for is on the disk."""
    os.sync()
    write_json(
        args.dest / MARKER, {"format": FORMAT, "lock": digest, "python": version, "at": time.time()}
    )
    reason = whole(args.dest, digest, pins, args.imports)
    if reason:
        os.unlink(args.dest / MARKER)
        raise Refused(
            "%s was built but %s" % (args.dest, reason), "the whole output is in the job's log"
        )


def arguments(argv: Optional[Sequence[str]] = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--dest", type=Path, required=True, help="where the environment goes")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--lock", type=Path, help="file of name==version lines")
    what.add_argument(
        "--package", action="append", default=[], metavar="REQUIREMENT",
        help="instead of a lock: a package, with what it needs",
    )  # fmt: skip
    parser.add_argument(
        "--installer", default="auto", choices=("auto", "uv", "pip"),
        help="auto: uv where it is to be had, else pip",
    )  # fmt: skip
    parser.add_argument(
        "--python", default="auto", help="interpreter to build with; auto looks for one"
    )
    parser.add_argument("--min-python", default="3.11")
    parser.add_argument(
        "--index-torch", default="", help="an extra index, such as one of CPU wheels"
    )
    parser.add_argument(
        "--plugin", type=Path, action="append", default=[], help="a local source folder"
    )
    parser.add_argument("--imports", default="", help="modules that must import: a,b,c")
    parser.add_argument("--imports-under", type=float, help="seconds; also proves an adopted one")
    parser.add_argument("--require-free", type=int, help="bytes; 4 GiB with torch, else 0.5 GiB")
    cuda = parser.add_mutually_exclusive_group()
    cuda.add_argument(
        "--prove-cuda", action="store_true", default=None,
        help="torch must see a CUDA device; on a host with a GPU it must in any case",
    )  # fmt: skip
    cuda.add_argument("--no-cuda", dest="prove_cuda", action="store_false", help="it need not")
    parser.add_argument("--allow-network-mount", action="store_true")
    parser.add_argument("--env", action="append", default=[], metavar="K=V")
    args = parser.parse_args(argv)
    args.dest = Path(os.path.abspath(os.path.expanduser(str(args.dest))))
    if args.lock is not None:
        args.lock = Path(os.path.abspath(os.path.expanduser(str(args.lock))))
    args.imports = [name for name in args.imports.split(",") if name]
    for pair in args.env:
        if "=" not in pair:
            parser.error("--env %r is not K=V" % pair)
    return args


def main(argv: Optional[Sequence[str]] = None) -> int:
    """The command."""
    args = arguments(argv)
    try:
        result = make(args)
    except Refused as refusal:
        print("venv: %s\n  next: %s" % (refusal, refusal.hint), file=sys.stderr, flush=True)
        return 1
    except OSError as error:
        print("venv: %s" % error, file=sys.stderr, flush=True)
        return 1
    out = os.environ.get("RUNBOOK_OUT")
    if out:
        write_json(Path(out), result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
