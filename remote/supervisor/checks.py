"""Whether a check holds. One that could not be carried out is unknown: no pass and no failure."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

from remote.supervisor.checks_http import check_http, check_http_generate, check_http_identity
from remote.supervisor.children import in_child
from remote.supervisor.files import free_bytes
from remote.supervisor.gpus import gpus, program
from remote.supervisor.ports import port_holders
from remote.supervisor.server_load import check_server_load
from remote.supervisor.verdicts import SHOWN, Verdict, dotted, verdict

if TYPE_CHECKING:
    from collections.abc import Callable

    from remote.supervisor.base import JSON


def verb_checks(request: JSON, workspace: str) -> JSON:
    deadline = time.monotonic() + float(request.get("budget_s", 60))
    results = []
    for check in request["checks"]:
        left = deadline - time.monotonic()
        verdict, evidence = one_check(check, request, left)
        results.append({"verdict": verdict, "evidence": evidence})
    return {"results": results}


def one_check(check: JSON, request: JSON, left_s: float) -> Verdict:
    if not isinstance(check, dict) or len(check) != 1:
        return "unknown", {"error": "a check has exactly one key"}
    kind, args = next(iter(check.items()))
    if kind not in CHECKS:
        return "unknown", {"error": f"no check is called {kind!r}"}
    if left_s <= 0:
        return "unknown", {"error": "no time was left for it"}
    args = dict(args or {}, _alive=request.get("alive"))
    answered, value = in_child(lambda: guarded(CHECKS[kind], args), left_s)
    if not answered:
        return "unknown", {"error": value}
    return value[0], value[1]


def guarded(check: Callable[[JSON], Verdict], args: JSON) -> Verdict:
    try:
        return check(args)
    except KeyError as error:
        return "unknown", {"error": f"it needs {error}"}
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        return "unknown", {"error": f"{type(error).__name__}: {error}"}


def where(args: JSON, key: str = "path") -> str:
    path = os.path.expanduser(str(args[key]))
    if not os.path.isabs(path):
        raise ValueError(f"{path} is not an absolute path")
    return path


def digest_of(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def check_file(args: JSON) -> Verdict:
    path = where(args)
    try:
        info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return verdict(False, path=path, found="absent")
    if not os.path.isfile(path):
        return verdict(False, path=path, found="not a file")
    least = int(args.get("min_bytes", 0))
    return verdict(info.st_size >= least, path=path, bytes=info.st_size, min_bytes=least)


def check_sha256(args: JSON) -> Verdict:
    path = where(args)
    if not os.path.isfile(path):
        return verdict(False, path=path, found="absent")
    found = digest_of(path)
    return verdict(found == str(args["hex"]).lower(), path=path, sha256=found)


def check_manifest(args: JSON) -> Verdict:
    path = where(args)
    if not os.path.isfile(path):
        return verdict(False, path=path, found="absent")
    with open(path, "rb") as file:
        entries = json.loads(file.read().decode("utf-8"))["files"]
    folder, problems, total = os.path.dirname(path), [], 0
    for entry in entries:
        name = str(entry["path"])
        if os.path.isabs(name) or ".." in name.split("/"):
            return "unknown", {"error": f"the manifest names {name!r}, outside its folder"}
        target = os.path.join(folder, name)
        if not os.path.isfile(target):
            problems.append(f"{name} is absent")
        elif os.path.getsize(target) != int(entry["size"]):
            problems.append(
                "%s has %d bytes, not %s" % (name, os.path.getsize(target), entry["size"])
            )
        elif not args.get("quick") and digest_of(target) != entry["sha256"]:
            problems.append(f"{name} has other content")
        total += int(entry["size"])
    return verdict(
        bool(entries) and not problems, path=path, files=len(entries), bytes=total,
        problems=problems[:20], compared="sizes" if args.get("quick") else "sha256",
    )  # fmt: skip


def check_command(args: JSON) -> Verdict:
    limit = float(args.get("timeout_s", 30))
    argv = [str(word) for word in args["argv"]]
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False,
            cwd="/",
        )  # fmt: skip
    except FileNotFoundError:
        return verdict(False, found=f"no program {argv[0]}")
    except subprocess.TimeoutExpired:
        return "unknown", {"error": f"it ran past {limit:g} s"}
    out = done.stdout.decode("utf-8", "replace")
    expected = args.get("expect")
    return verdict(
        done.returncode == 0 and (expected is None or str(expected) in out),
        code=done.returncode, out=out[-SHOWN:],
        err=done.stderr.decode("utf-8", "replace")[-SHOWN:], expect=expected,
    )  # fmt: skip


def check_port(args: JSON) -> Verdict:
    port, host = int(args["port"]), str(args.get("host", "127.0.0.1"))
    try:
        socket.create_connection((host, port), timeout=float(args.get("timeout_s", 5))).close()
    except OSError as error:
        return verdict(False, port=port, host=host, found=error.strerror or str(error))
    return verdict(True, port=port, host=host, found="accepts connections")


def check_port_free(args: JSON) -> Verdict:
    port = int(args["port"])
    holders = port_holders([port])
    if not holders:
        return verdict(True, port=port, found="free")
    owner = ", ".join("{command} (pid {pid})".format(**row) for row in holders if row["pid"])
    return verdict(False, port=port, found="in use", **({"owner": owner} if owner else {}))


def check_json_metric(args: JSON) -> Verdict:
    path, key = where(args), str(args["key"])
    if not os.path.isfile(path):
        return verdict(False, path=path, found="absent")
    with open(path, "rb") as file:
        value = dotted(json.loads(file.read().decode("utf-8")), key)
    tests: dict[str, Callable[[Any, Any], bool]] = {
        "min": lambda a, b: a >= b, "max": lambda a, b: a <= b, "equals": lambda a, b: a == b,
        "above": lambda a, b: a > b, "below": lambda a, b: a < b,
    }  # fmt: skip
    wanted = {name: args[name] for name in tests if name in args}
    if not wanted:
        return "unknown", {"error": "it needs min, max, equals, above or below"}
    good = all(bool(tests[name](value, bound)) for name, bound in wanted.items())
    return verdict(good, path=path, key=key, value=value, wanted=wanted)


def check_rows_at_least(args: JSON) -> Verdict:
    pattern, rows, torn = where(args, "glob"), 0, 0
    paths = sorted(glob.glob(pattern))
    for path in paths:
        with open(path, "rb") as file:
            for line in file:
                rows += bool(line.strip()) and line.endswith(b"\n")
                torn += not line.endswith(b"\n")
    return verdict(
        rows >= int(args["rows"]), glob=pattern, rows=rows, files=len(paths), torn_lines=torn
    )


def check_python_imports(args: JSON) -> Verdict:
    python, modules = where(args, "python"), [str(name) for name in args["modules"]]
    if not os.path.exists(python):
        return verdict(False, python=python, found="absent")
    limit = args.get("under_s")
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    environment = dict(os.environ, **{k: str(v) for k, v in (args.get("env") or {}).items()})
    began = time.monotonic()
    try:
        done = subprocess.run(
            [python, "-c", code, *modules], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, env=environment, check=False, cwd="/",
            timeout=float(limit) + 1 if limit else 120,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return verdict(False, python=python, modules=modules, found=f"over {error.timeout:g} s")
    seconds = round(time.monotonic() - began, 3)
    good = done.returncode == 0 and (limit is None or seconds <= float(limit))
    err = done.stderr.decode("utf-8", "replace")[-SHOWN:]
    return verdict(good, python=python, modules=modules, seconds=seconds, err=err)


def check_free_space(args: JSON) -> Verdict:
    path, need = where(args), int(args["bytes"])
    free = free_bytes(path)
    if free is None:
        return "unknown", {"error": f"the file system of {path} does not say"}
    return verdict(free >= need, path=path, free_bytes=free, need_bytes=need)


def check_gpu_free(args: JSON) -> Verdict:
    """No process holds more than a little memory of these GPUs."""
    wanted, most = {int(index) for index in args["gpus"]}, int(args.get("max_bytes", 1 << 30))
    found = {gpu["index"]: gpu for gpu in gpus()}
    if not found and program() is not None:
        return "unknown", {"error": "nvidia-smi does not answer"}
    if not wanted <= set(found):
        absent = sorted(wanted - set(found))
        names = ", ".join(str(index) for index in absent)
        return verdict(False, found=f"the machine has no GPU {names}", gpus=absent)
    users = [
        dict(user, gpu=index) for index in sorted(wanted) for user in found[index]["processes"]
    ]
    used = {str(index): found[index]["used_bytes"] for index in sorted(wanted)}
    return verdict(all((size or 0) <= most for size in used.values()), used=used, users=users)


def check_process_alive(args: JSON) -> Verdict:
    alive = args.get("_alive")
    if not alive:
        return "unknown", {"error": "no attempt was named"}
    return verdict(alive["state"] == "running", **alive)


CHECKS: dict[str, Callable[[JSON], Verdict]] = {
    "file": check_file, "sha256": check_sha256, "manifest": check_manifest,
    "command": check_command, "port": check_port, "port_free": check_port_free,
    "http": check_http, "http_generate": check_http_generate, "http_identity": check_http_identity,
    "json_metric": check_json_metric, "rows_at_least": check_rows_at_least,
    "python_imports": check_python_imports, "free_space": check_free_space,
    "process_alive": check_process_alive, "gpu_free": check_gpu_free,
    "server_load": check_server_load,
}  # fmt: skip
