"""What a machine has, and whether a check holds on it. Standard library only, Python 3.8 or newer.

Called as `python3 FILE facts|checks` with one JSON request on stdin; the answer is one JSON object
between the two sentinels that the request names. Whatever may hang (a network mount, a stuck
server) runs in a child with a deadline: a probe that waits for ever piles up. A check that could
not be carried out is `unknown`, which is neither a pass nor a failure.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import platform
import pwd
import re
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from typing import Any, Callable, Dict, List, Optional, Tuple

JSON = Dict[str, Any]
Verdict = Tuple[str, JSON]

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - looked at, never written
SHOWN = 2000  # characters of output kept as evidence
NETWORK_TYPES = re.compile(r"nfs|cifs|smb|fuse|9p|ceph|lustre|gpfs|beegfs|glusterfs|afs|virtiofs")
PSEUDO_TYPES = frozenset(
    ["proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "securityfs", "debugfs", "tracefs",
     "configfs", "fusectl", "pstore", "bpf", "binfmt_misc", "autofs", "hugetlbfs", "nsfs",
     "rpc_pipefs", "efivarfs", "devtmpfs", "selinuxfs"]
)  # fmt: skip


def in_child(work: Callable[[], Any], limit_s: float) -> Tuple[bool, Any]:
    """The result of `work` from a child process, or (False, why)."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(ours)
            os.setpgid(0, 0)
            data = json.dumps(work()).encode()
            while data:
                data = data[os.write(theirs, data) :]
            code = 0
        finally:
            os._exit(code)
    os.close(theirs)
    data, deadline = b"", time.monotonic() + limit_s
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([ours], [], [], left)[0]:
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                return False, "no answer in %.1f s" % limit_s
            piece = os.read(ours, 1 << 16)
            if not piece:
                break
            data += piece
    finally:
        os.close(ours)
        # One that hangs in the kernel cannot be reaped now: leave it to init, do not wait.
        os.waitpid(pid, 0 if data else os.WNOHANG)
    if not data:
        return False, "the child that looked died"
    return True, json.loads(data.decode())


def text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def number_of(path: str) -> Optional[int]:
    text = text_of(path)
    return int(text) if text.isdigit() else None


# --- facts -------------------------------------------------------------------------------------


def facts(request: JSON) -> JSON:
    root = os.path.expanduser(str(request.get("root") or "~"))
    found = {
        "system": platform.system(), "kernel": platform.release(), "machine": platform.machine(),
        "distribution": distribution(), "hostname": socket.gethostname(), "user": user_name(),
        "uid": os.getuid(), "home": os.path.expanduser("~"), "root": root,
        "cpu": cpu(), "memory": memory(), "shm": shared_memory(), "mounts": mounts(),
        "root_free_bytes": free_bytes(root), "gpus": gpus(),
        "python": {"version": platform.python_version(), "path": sys.executable},
        "glibc": ".".join(platform.libc_ver()[1:]), "container": container(),
        "limits": limits(), "public_ports": public_ports(), "tools": tools(),
        "unix_time": time.time(),
    }  # fmt: skip
    return {"ok": True, "facts": found}


def user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def distribution() -> str:
    match = re.search(r'^PRETTY_NAME="?([^"\n]*)', text_of("/etc/os-release"), re.MULTILINE)
    return match.group(1) if match else ""


def cpu() -> JSON:
    model = re.search(r"^model name\s*:\s*(.*)$", text_of("/proc/cpuinfo"), re.MULTILINE)
    quota = None
    parts = text_of("/sys/fs/cgroup/cpu.max").split()
    if len(parts) == 2 and parts[0].isdigit():
        quota = int(parts[0]) / int(parts[1])
    else:
        limit = number_of("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
        period = number_of("/sys/fs/cgroup/cpu/cpu.cfs_period_us")
        quota = limit / period if limit and period else None
    return {
        "count": os.cpu_count(), "usable": len(os.sched_getaffinity(0)), "cgroup_cpus": quota,
        "model": model.group(1) if model else "", "load": os.getloadavg()[0],
    }  # fmt: skip


def cgroup_memory() -> Tuple[Optional[int], Optional[int]]:
    """Limit and use of our memory group; None where there is none."""
    places = [("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current")]
    for line in text_of("/proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if not controllers:
            base = "/sys/fs/cgroup" + path.rstrip("/")
            places.insert(0, (base + "/memory.max", base + "/memory.current"))
        elif "memory" in controllers.split(","):
            places.extend(
                (base + "/memory.limit_in_bytes", base + "/memory.usage_in_bytes")
                for base in ("/sys/fs/cgroup/memory" + path, "/sys/fs/cgroup/memory")
            )
    for limit, used in places:
        value = number_of(limit)
        if value is not None and value < 1 << 60:
            return value, number_of(used)
    return None, None


def memory() -> JSON:
    lines = dict(re.findall(r"^(\w+):\s+(\d+)", text_of("/proc/meminfo"), re.MULTILINE))
    limit, used = cgroup_memory()
    return {
        "total_bytes": int(lines.get("MemTotal", 0)) * 1024,
        "available_bytes": int(lines.get("MemAvailable", 0)) * 1024,
        "swap_bytes": int(lines.get("SwapTotal", 0)) * 1024,
        "cgroup_limit_bytes": limit, "cgroup_used_bytes": used,
    }  # fmt: skip


def shared_memory() -> JSON:
    """Its size is a promise; the memory behind it is what can be had."""
    try:
        info = os.statvfs(SHARED_MEMORY)
    except OSError:
        return {"size_bytes": 0, "free_bytes": 0, "memory_behind_bytes": 0}
    behind = memory()
    available = behind["available_bytes"]
    if behind["cgroup_limit_bytes"] is not None and behind["cgroup_used_bytes"] is not None:
        left = behind["cgroup_limit_bytes"] - behind["cgroup_used_bytes"]
        available = max(0, min(available, left))
    return {
        "size_bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize,
        "memory_behind_bytes": available,
    }  # fmt: skip


def mounts() -> List[JSON]:
    """The mount table is read without touching the mounts; each is then asked with a deadline."""
    found: List[JSON] = []
    for line in text_of("/proc/self/mountinfo").splitlines():
        fields = line.split()
        dash = fields.index("-")
        kind, path = fields[dash + 1], fields[4].encode().decode("unicode_escape")
        if kind in PSEUDO_TYPES or path.startswith(("/proc", "/sys")):
            continue
        one: JSON = {
            "path": path, "type": kind, "network": bool(NETWORK_TYPES.search(kind)),
            "read_only": "ro" in fields[5].split(","),
        }  # fmt: skip
        # A local disk answers at once; only others are worth a child each.
        if one["network"]:
            answered, value = in_child(lambda path=path: disk(path), 3.0)  # type: ignore[misc]
            one.update(value if answered else {"hung": True})
        else:
            one.update(disk(path))
        found.append(one)
    return found[:200]


def disk(path: str) -> JSON:
    try:
        info = os.statvfs(path)
    except OSError as error:
        return {"error": error.strerror}
    return {
        "total_bytes": info.f_blocks * info.f_frsize, "free_bytes": info.f_bavail * info.f_frsize,
        "free_inodes": info.f_favail,
    }  # fmt: skip


def free_bytes(path: str) -> Optional[int]:
    """Free space where `path` is or would be created."""
    while not os.path.exists(path) and path not in ("/", ""):
        path = os.path.dirname(path)
    return disk(path or "/").get("free_bytes")


def gpus() -> List[JSON]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    names = "index,name,uuid,memory.total,memory.used,driver_version,compute_cap"
    try:
        done = subprocess.run(
            [program, "--query-gpu=" + names, "--format=csv,noheader,nounits"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = []
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) == 7 and values[0].isdigit():
            index, name, uuid, total, used, driver, capability = values
            found.append(
                {
                    "index": int(index), "name": name, "uuid": uuid, "driver": driver,
                    "memory_bytes": mebibytes(total), "used_bytes": mebibytes(used),
                    "compute_capability": capability,
                }
            )  # fmt: skip
    return found


def mebibytes(text: str) -> Optional[int]:
    return int(text) << 20 if text.isdigit() else None


def container() -> str:
    """The kind of container we are in, "" for none that shows."""
    if os.path.exists("/run/.containerenv"):
        return "podman"
    if os.path.exists("/.dockerenv"):
        return "docker"
    match = re.search(r"docker|kubepods|lxc|libpod", text_of("/proc/1/cgroup"))
    return match.group(0) if match else ""


def limits() -> JSON:
    kinds = {
        "open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC,
        "locked_memory_bytes": resource.RLIMIT_MEMLOCK, "stack_bytes": resource.RLIMIT_STACK,
        "file_bytes": resource.RLIMIT_FSIZE,
    }  # fmt: skip
    return {
        name: [None if value == resource.RLIM_INFINITY else value for value in pair]
        for name, pair in ((name, resource.getrlimit(kind)) for name, kind in kinds.items())
    }


def listening_sockets() -> List[Tuple[str, int]]:
    """(hexadecimal address, port) of every listening TCP socket."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in text_of(table).splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, _, port = fields[1].rpartition(":")
                found.append((address, int(port, 16)))
    return found


def public_ports() -> List[int]:
    """Ports that listen on more than loopback."""
    loopback = ("0100007F", "0" * 24 + "01000000")
    return sorted(
        {
            port for address, port in listening_sockets()
            if address not in loopback and not address.endswith("7F")
        }
    )  # fmt: skip


def tools() -> JSON:
    names = "bash git rsync curl uv gcc nvcc ssh tmux systemd-run nvidia-smi aws".split()  # noqa: SIM905
    return {name: shutil.which(name) for name in names}


# --- checks ------------------------------------------------------------------------------------


def checks(request: JSON) -> JSON:
    deadline = time.monotonic() + float(request.get("budget_s", 60))
    results = []
    for check in request["checks"]:
        left = deadline - time.monotonic()
        verdict, evidence = one_check(check, request, left)
        results.append({"verdict": verdict, "evidence": evidence})
    return {"ok": True, "results": results}


def one_check(check: JSON, request: JSON, left_s: float) -> Verdict:
    if not isinstance(check, dict) or len(check) != 1:
        return "unknown", {"error": "a check has exactly one key"}
    kind, args = next(iter(check.items()))
    if kind not in CHECKS:
        return "unknown", {"error": "no check is called %r" % kind}
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
        return "unknown", {"error": "it needs %s" % error}
    except (OSError, ValueError, TypeError, subprocess.SubprocessError) as error:
        return "unknown", {"error": "%s: %s" % (type(error).__name__, error)}


def verdict(good: bool, **evidence: Any) -> Verdict:
    return ("pass" if good else "fail"), evidence


def where(args: JSON, key: str = "path") -> str:
    path = os.path.expanduser(str(args[key]))
    if not os.path.isabs(path):
        raise ValueError("%s is not an absolute path" % path)
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
            return "unknown", {"error": "the manifest names %r, outside its folder" % name}
        target = os.path.join(folder, name)
        if not os.path.isfile(target):
            problems.append("%s is absent" % name)
        elif os.path.getsize(target) != int(entry["size"]):
            problems.append(
                "%s has %d bytes, not %s" % (name, os.path.getsize(target), entry["size"])
            )
        elif not args.get("quick") and digest_of(target) != entry["sha256"]:
            problems.append("%s has other content" % name)
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
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            timeout=limit, check=False, cwd="/",
        )  # fmt: skip
    except FileNotFoundError:
        return verdict(False, found="no program %s" % argv[0])
    except subprocess.TimeoutExpired:
        return "unknown", {"error": "it ran past %g s" % limit}
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
    taken = port in {listening for _, listening in listening_sockets()}
    return verdict(not taken, port=port, found="in use" if taken else "free")


def ask(url: str, timeout_s: float, body: Optional[JSON] = None) -> Tuple[int, bytes]:
    """Status and body of an HTTP request, never through a proxy."""
    if not url.startswith(("http://", "https://")):
        raise ValueError("%r is no http address" % url)
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - tested above
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout_s) as reply:
            return reply.status, reply.read(1 << 20)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(1 << 16)


def refusal(error: OSError) -> str:
    return str(getattr(error, "reason", "") or error.strerror or error)


def check_http(args: JSON) -> Verdict:
    url, wanted = str(args["url"]), int(args.get("status", 200))
    try:
        status, body = ask(url, float(args.get("timeout_s", 10)))
    except OSError as error:
        return verdict(False, url=url, found=refusal(error))
    text, contains = body.decode("utf-8", "replace"), args.get("contains")
    good = status == wanted and (contains is None or str(contains) in text)
    return verdict(good, url=url, status=status, body=text[:SHOWN])


def check_http_generate(args: JSON) -> Verdict:
    """One tiny generation: a port that listens, or a list of models, is not a ready server."""
    base, model = str(args["url"]).rstrip("/"), str(args["model"])
    limit = float(args.get("timeout_s", 30))
    began = time.monotonic()
    try:
        served = served_models(base, limit)
        if served is not None and model not in served:
            return verdict(False, url=base, model=model, served=served)
        status, body = ask(*generation_request(base, model, str(args["api"]), limit))
    except OSError as error:
        return verdict(False, url=base, found=refusal(error))
    seconds = round(time.monotonic() - began, 3)
    if status != 200:
        text = body.decode("utf-8", "replace")[:SHOWN]
        return verdict(False, url=base, status=status, body=text, seconds=seconds)
    text, count = generated(json.loads(body.decode("utf-8")))
    return verdict(
        count > 0, url=base, model=model, text=text[:200], ids=count, seconds=seconds, served=served
    )


def served_models(base: str, limit: float) -> Optional[List[str]]:
    status, body = ask(base + "/v1/models", limit)
    if status != 200:
        return None
    try:
        return [str(entry["id"]) for entry in json.loads(body.decode("utf-8"))["data"]]
    except (ValueError, KeyError, TypeError):
        return None


def generation_request(base: str, model: str, api: str, limit: float) -> Tuple[str, float, JSON]:
    if api == "sglang":
        sampling = {"max_new_tokens": 4, "temperature": 0}
        return base + "/generate", limit, {"text": "Count: 1, 2,", "sampling_params": sampling}
    if api == "openai":
        messages = [{"role": "user", "content": "Say hello."}]
        body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
        return base + "/v1/chat/completions", limit, body
    raise ValueError("api is sglang or openai, not %r" % api)


def generated(answer: Any) -> Tuple[str, int]:
    """Text and token count of either kind of answer."""
    if isinstance(answer, list):
        answer = answer[0]
    if "choices" in answer:
        message = answer["choices"][0].get("message") or {}
        text = message.get("content") or message.get("reasoning_content") or ""
        return str(text), int((answer.get("usage") or {}).get("completion_tokens") or len(text))
    ids = answer.get("output_ids")
    count = len(ids) if ids else int((answer.get("meta_info") or {}).get("completion_tokens") or 0)
    return str(answer.get("text") or ""), count


def dotted(value: Any, key: str) -> Any:
    for part in key.split("."):
        if isinstance(value, list):
            value = value[int(part)]
        else:
            if part not in value:
                raise ValueError("no field %r" % key)
            value = value[part]
    return value


def check_http_identity(args: JSON) -> Verdict:
    url, field = str(args["url"]), str(args["field"])
    try:
        status, body = ask(url, float(args.get("timeout_s", 10)))
    except OSError as error:
        return verdict(False, url=url, found=refusal(error))
    if status != 200:
        return verdict(False, url=url, status=status)
    found = dotted(json.loads(body.decode("utf-8")), field)
    return verdict(found == args["equals"], url=url, field=field, found=found)


def check_json_metric(args: JSON) -> Verdict:
    path, key = where(args), str(args["key"])
    if not os.path.isfile(path):
        return verdict(False, path=path, found="absent")
    with open(path, "rb") as file:
        value = dotted(json.loads(file.read().decode("utf-8")), key)
    tests: Dict[str, Callable[[Any, Any], bool]] = {
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
        return verdict(False, python=python, modules=modules, found="over %g s" % error.timeout)
    seconds = round(time.monotonic() - began, 3)
    good = done.returncode == 0 and (limit is None or seconds <= float(limit))
    err = done.stderr.decode("utf-8", "replace")[-SHOWN:]
    return verdict(good, python=python, modules=modules, seconds=seconds, err=err)


def check_free_space(args: JSON) -> Verdict:
    path, need = where(args), int(args["bytes"])
    free = free_bytes(path)
    if free is None:
        return "unknown", {"error": "the file system of %s does not say" % path}
    return verdict(free >= need, path=path, free_bytes=free, need_bytes=need)


def check_process_alive(args: JSON) -> Verdict:
    alive = args.get("_alive")
    if not alive:
        return "unknown", {"error": "no attempt was named"}
    return verdict(alive["state"] == "running", **alive)


CHECKS: Dict[str, Callable[[JSON], Verdict]] = {
    "file": check_file, "sha256": check_sha256, "manifest": check_manifest,
    "command": check_command, "port": check_port, "port_free": check_port_free,
    "http": check_http, "http_generate": check_http_generate, "http_identity": check_http_identity,
    "json_metric": check_json_metric, "rows_at_least": check_rows_at_least,
    "python_imports": check_python_imports, "free_space": check_free_space,
    "process_alive": check_process_alive,
}  # fmt: skip


def main(argv: List[str]) -> int:
    verbs = {"facts": facts, "checks": checks}
    if len(argv) != 2 or argv[1] not in verbs:
        print("usage: probe.py facts|checks < request.json", file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.read().decode("utf-8"))
    result = verbs[argv[1]](request)
    sys.stdout.write("%s\n%s\n%s\n" % (request["begin"], json.dumps(result), request["end"]))
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
