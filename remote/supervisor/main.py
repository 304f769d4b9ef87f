"""One verb for one request: JSON in, JSON between two sentinels out."""

from __future__ import annotations

import errno
import importlib
import json
import os
import signal
import sys
from typing import Any, Callable, Dict, List, NoReturn

from remote.supervisor.base import INJECT, JSON, LOGIN, Refused, checked_name, step_clock
from remote.supervisor.identity import identity

# Where each verb lives. Only its own module is compiled for a request: a poll stays cheap.
VERBS: Dict[str, str] = {
    "launch": "launch", "burn": "launch", "stop": "stop", "extend": "stop",
    "poll": "status", "jobs": "status", "owner": "status", "resources": "resources",
    "read": "reading", "read_out": "reading", "read_file": "reading", "ship": "reading",
    "facts": "facts", "radar": "radar", "checks": "checks", "collect_garbage": "garbage",
    "draining": "draining", "hand_keys": "keys",
    "list": "transfer", "hashes": "transfer", "put_open": "transfer",
    "put": "transfer", "put_close": "transfer", "get": "transfer",
}  # fmt: skip
STREAMED = ("put", "get")
"""Verbs that speak before their answer: lines and blocks, between the marks."""


def find(verb: str) -> Callable[[JSON, str], JSON]:
    module = importlib.import_module("remote.supervisor." + VERBS[verb])
    found: Callable[[JSON, str], JSON] = getattr(module, "verb_" + verb)
    return found


def answer(verb: str, request: JSON) -> JSON:
    # One spelling of the path: processes are found by it.
    root = os.path.realpath(os.path.expanduser(str(request["root"])))
    workspace = os.path.join(root, checked_name(request.get("workspace"), "workspace"))
    try:
        result = dict(find(verb)(request, workspace), ok=True)
    except Refused as refused:
        result = refused.answer
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        where = error.filename or workspace
        result = {
            "ok": False, "error": "disk_full" if full else "os_error",
            "message": "%s: %s" % (where, error.strerror or error),
        }  # fmt: skip
    result["identity"] = identity()
    return result


def too_late(*_: Any) -> NoReturn:
    raise SystemExit("the request ran past its limit on the host")


def inject(faults: JSON) -> None:
    INJECT.update(faults)
    if "clock_file" in faults:
        step_clock()


def main(argv: List[str]) -> int:
    if len(argv) == 5 and argv[1] == "supervise":
        from remote.supervisor.supervise import Supervisor

        inject(json.loads(os.environ.get("RUNBOOK_INJECT") or "{}"))
        Supervisor(argv[2], int(argv[3]), json.loads(argv[4])).run()
        return 0
    if len(argv) != 2 or argv[1] not in VERBS:
        print("usage: supervisor %s < request" % "|".join(sorted(VERBS)), file=sys.stderr)
        return 2
    request = json.loads(sys.stdin.buffer.readline().decode("utf-8"))
    inject(request.get("inject") or {})
    LOGIN["umask"] = os.umask(0o077)
    # A client that went away must not leave us running: the limit is ours, not the connection's.
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(max(1, int(request.get("limit_s", 600))))
    begin = request["begin"] + "\n"
    if argv[1] in STREAMED:
        sys.stdout.write(begin)
        sys.stdout.flush()
        begin = ""
    result = answer(argv[1], request)
    sys.stdout.write("%s%s\n%s\n" % (begin, json.dumps(result), request["end"]))
    sys.stdout.flush()
    return 0
