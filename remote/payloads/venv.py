"""Makes one virtual environment from a lock file or a list, or adopts the one that is there.

Runs on the host as a job payload with its neighbours on PYTHONPATH: standard library only, Python
3.8 or later, whatever Python the environment itself gets. A whole environment carries a marker,
written last; one without it is never taken for whole. It is built at its final path, because
scripts inside name that path.

uv installs where it is to be had, told what pip's own configuration says of indexes, wheel folders
and constraints, which it does not read. What uv cannot do, pip does, and says what is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Sequence

from remote.payloads.records import Refused, emit, write_json
from remote.payloads.venv_build import UNIT, Builder, build, make_way, take_lock
from remote.payloads.venv_host import check_host, driver_of, interpreter
from remote.payloads.venv_pins import (
    FORMAT,
    cuda_of,
    digest_of,
    list_of,
    pins_of,
)

MARKER = ".runbook-venv.json"
OURS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")
"""What this program runs with; the environment is made, and proved, without."""
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
    env = {name: value for name, value in os.environ.items() if name not in OURS}
    env.update(pair.partition("=")[::2] for pair in args.env)
    with take_lock(args.dest) as lock:
        reason = whole(args.dest, digest, pins, args.imports)
        if reason:
            check_host(args, pins, libc)
            make_way(args.dest, reason)
            build(args, pins, Builder(args.dest, env, lock.fileno()))
        if reason or args.imports_under is not None or args.prove_cuda:
            emit("phase", "proving the imports")
            prove_imports(args, env)
        if reason:
            finish(args, pins, digest, version)
    seconds = round(time.monotonic() - began, 2)
    emit(
        "done",
        "%s %s" % (args.dest, "built" if reason else "adopted"),
        len(pins),
        len(pins),
        unit=UNIT,
    )
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
