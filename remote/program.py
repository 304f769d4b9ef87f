"""Our program on a host: found or sent there, and asked.

A request is one framed round trip. A lost answer raises Unreachable, and every request is safe to
repeat. Blocks of files flow both ways at once, between the marks of one request.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets as random_source
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote.archive import archive
from remote.errors import CommandFailed, Unreachable, UnsupportedHost, WrongAnswer
from remote.stream import Stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from remote.model import Result
    from remote.transport import Transport

ROUND_TRIP_S = 60.0
LONGEST_NUMBER = 300
"""Digits; a float has room for a few more."""
LAST_BYTES, LONGEST_EXCERPT = 400, 120
BARE = ("-I", "-S")  # the scripts need no packages, and a host's site may be slow or broken
PYTHONS = "python3 python3.13 python3.12 python3.11 python3.10 python3.9 python3.8 /usr/bin/python3"

# Finds an interpreter and says where the root is. Works in any POSIX shell.
_FIND = f"""for p in {PYTHONS} /opt/conda/bin/python3; do
if "$p" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
exec "$p" -I -S -c "$1" "$2" "$3"; fi; done; echo "$3" >&2; exit 86"""
_WHERE = """import json, os, platform, sys
print(sys.argv[2] + json.dumps({"python": sys.executable, "system": platform.system(),
"version": platform.python_version(),
"root": os.path.realpath(os.path.expanduser(sys.argv[1]))}) + sys.argv[2])"""
# Receives a script: aside, fsync, rename, as every file here.
_RECEIVE = """import hashlib, os, sys
path, want = sys.argv[1:3]
data = sys.stdin.buffer.read()
if hashlib.sha256(data).hexdigest() != want: sys.exit("what arrived is not what was sent")
aside = "%s.%d" % (path, os.getpid())
try:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(aside, "xb") as file:
        file.write(data); file.flush(); os.fsync(file.fileno())
    os.rename(aside, path)
except OSError as error:
    sys.exit("cannot write %s: %s" % (error.filename or path, error.strerror))"""


class Program:
    """The program of one workspace on one host."""

    def __init__(self, *, root: str, workspace_id: str, inject: Mapping[str, Any]) -> None:
        self._root = root
        self._workspace_id = workspace_id
        self._inject = dict(inject)
        self._python = ""
        self._at = ""

    def folder(self, over: Transport) -> str:
        """The workspace's folder on the host, resolved there."""
        self._find(over)
        return f"{self._at}/{self._workspace_id}"

    def ask(
        self, verb: str, body: Mapping[str, Any], *, over: Transport, timeout: float
    ) -> dict[str, Any]:
        """One round trip; the answer, which may be a refusal.

        Raises:
            Unreachable: no whole answer came.
            CommandFailed: the program itself broke.
        """
        argv, request = self._request(verb, body, over, timeout)
        data = _line(request)
        result = over.run(argv, input=data, timeout=timeout)
        if result.code == 2 and b"can't open file" in result.err:
            self._push(over)
            result = over.run(argv, input=data, timeout=timeout)
        answer = _unframe(result.out, request["begin"], request["end"])
        if answer is not None and "ok" in answer:
            return answer
        self._python = ""  # perhaps it was replaced: look again with the next request
        if result.ok:
            raise _wrong(over, verb, request["begin"], result)
        if result.code is None or b"ran past its limit" in result.err:
            raise Unreachable(
                f"{over.label} cut its answer to {verb} short",
                hint="ask again: requests are safe to repeat",
            )
        raise CommandFailed(result, where=over.label)

    @contextlib.contextmanager
    def stream(
        self, verb: str, body: Mapping[str, Any], *, over: Transport, timeout: float
    ) -> Iterator[Stream]:
        """A request whose blocks flow; the last line of the stream is the answer."""
        argv, request = self._request(verb, body, over, timeout)
        with over.open(argv, timeout=timeout) as pipe, Stream(pipe) as stream:
            stream.begin(_line(request), request["begin"])
            yield stream

    def _request(
        self, verb: str, body: Mapping[str, Any], over: Transport, timeout: float
    ) -> tuple[list[str], dict[str, Any]]:
        self._find(over)
        mark = random_source.token_hex(16)
        request = {
            **body,
            "begin": f"<{mark}",
            "end": f"{mark}>",
            "root": self._at,
            "workspace": self._workspace_id,
            "inject": self._inject,
            "limit_s": int(timeout),
        }
        return [self._python, *BARE, self._place()[0], verb], request

    def _find(self, over: Transport) -> None:
        if self._python:
            return
        mark = random_source.token_hex(16)
        argv = ["sh", "-c", _FIND, "sh", _WHERE, self._root, mark]
        result = over.run(argv, timeout=ROUND_TRIP_S)
        found = _unframe(result.out, mark, mark)
        if found is None:
            if mark.encode() in result.err:
                raise UnsupportedHost(
                    f"{over.label} has no Python 3.8 or newer",
                    hint="install python3 there; jobs need nothing else",
                )
            if result.ok:
                raise _wrong(over, "the look for its Python", mark, result)
            # The script itself would hide what was said.
            raise CommandFailed(replace(result, argv=("look for python3",)), where=over.label)
        if found["system"] != "Linux":
            raise UnsupportedHost(
                f"{over.label} runs {found['system']}; jobs need Linux",
                hint="bind the role to a Linux machine",
            )
        self._at = found["root"]
        self._python = found["python"]  # last: other threads take it for "connected"

    def _place(self) -> tuple[str, str]:
        """Where our program lies on the host, by its content, and its digest."""
        digest = hashlib.sha256(archive()).hexdigest()
        return f"{self._at}/{self._workspace_id}/bin/{digest[:16]}-supervisor.pyz", digest

    def _push(self, over: Transport) -> None:
        argv = [self._python, *BARE, "-c", _RECEIVE, *self._place()]
        sent = over.run(argv, input=archive(), timeout=ROUND_TRIP_S)
        if not sent.ok:
            raise CommandFailed(
                sent,
                where=over.label,
                hint=f"make room at {self._root}, or bind the host with a --root we may write to",
            )


def _line(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


def _wrong(over: Transport, asked: str, begin: str, result: Result) -> WrongAnswer:
    """With the last of what came in the place of an answer, or that it was cut."""
    said = " ".join((result.out or result.err)[-LAST_BYTES:].decode("utf-8", "replace").split())
    said = said[-LONGEST_EXCERPT:] or "it says nothing"
    if begin.encode() in result.out:
        said = f"no whole answer in the {len(result.out):,} bytes that came"
    return WrongAnswer(
        f"{over.label} answers {asked} wrongly: {said}",
        hint="look there by hand: a login script, a wrapper of python3, a full or missing disk",
    )


def _unframe(out: bytes, begin: str, end: str) -> dict[str, Any] | None:
    """The object between the marks; None when it did not come whole."""
    start = out.find(begin.encode())
    stop = out.find(end.encode(), start + len(begin)) if start >= 0 else -1
    if stop < 0:
        return None
    try:
        value: Any = json.loads(out[start + len(begin) : stop], parse_int=_whole)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _whole(digits: str) -> float:
    """A number that a job made up may be larger than any float, and not to be shown as one."""
    return int(digits) if len(digits) < LONGEST_NUMBER else float(digits)
