"""The machine we are on, as a host: the same protocol, without a network."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING

from remote.errors import Unreachable, UnsupportedHost
from remote.model import Result
from remote.supervisor.files import write_all

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# What a login would give. The operator's own tokens and virtual environment are not for jobs.
KEPT = frozenset({
    "HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR",
    "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HOME",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY",
})  # fmt: skip
KEPT_PREFIXES = ("LC_", "XDG_", "PIP_", "UV_")


def login_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The part of our environment that jobs on this machine may see."""
    return {
        name: value
        for name, value in environment.items()
        if name.upper() in KEPT or name.startswith(KEPT_PREFIXES)
    }


IDLE_S = 120.0  # nothing came for so long though we wait for it: given up


class LocalTransport:
    """Runs commands as children in a session of their own, so that our end is not theirs."""

    label = "local"
    host_key = ""
    way = "this machine itself, without SSH"

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise UnsupportedHost(
                f"The host `local` needs Linux, this is {sys.platform}",
                hint="bind the role to a Linux machine over SSH; operating it from here works",
            )

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        try:
            child = _start(argv, subprocess.PIPE)
        except OSError as error:
            # As a shell on the other side of SSH would report it.
            refused = 126 if isinstance(error, PermissionError) else 127
            return Result(argv=tuple(argv), code=refused, out=b"", err=str(error).encode())
        with child:
            try:
                out, err = child.communicate(input, timeout=timeout)
            except subprocess.TimeoutExpired as error:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                # Whoever left the group and holds our pipes open is not waited for.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.communicate(timeout=1)
                raise Unreachable(
                    f"{' '.join(argv)[:80]} on local gave no answer in {timeout:.0f} s",
                    hint="the machine may be overloaded; the request is safe to repeat",
                ) from error
        code = child.returncode if child.returncode >= 0 else None
        return Result(argv=tuple(argv), code=code, out=out, err=err)

    @contextlib.contextmanager
    def open(self, argv: Sequence[str], *, timeout: float) -> Iterator[ProcessPipe]:
        with tempfile.TemporaryFile() as said:
            try:
                child = _start(argv, said)
            except OSError as error:
                raise Unreachable(f"{argv[0]} cannot be started here: {error}") from error
            pipe = ProcessPipe(child, said)
            with child:
                try:
                    yield pipe
                finally:
                    pipe.abort()

    def bulk(self) -> LocalTransport:
        return self

    def close(self) -> None:
        """Nothing is held open."""


class ProcessPipe:
    """The pipes of a child."""

    def __init__(self, child: subprocess.Popen[bytes], said: IO[bytes]) -> None:
        assert child.stdin is not None
        assert child.stdout is not None
        self._child = child
        self._said = said
        self._in, self._out = child.stdin, child.stdout.fileno()

    def write(self, data: bytes) -> None:
        try:
            write_all(self._in.fileno(), data)
        except OSError as error:
            raise self.cut(error.strerror or "") from error

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self._in.close()

    def read(self, size: int) -> bytes:
        if not select.select([self._out], [], [], IDLE_S)[0]:
            raise self.cut(f"nothing came for {IDLE_S:.0f} s")
        return os.read(self._out, size)

    def abort(self) -> None:
        if self._child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def cut(self, why: str) -> Unreachable:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1)
        said = os.pread(self._said.fileno(), 2000, 0).decode("utf-8", "replace")
        return Unreachable(f"local: {said.strip().rpartition(chr(10))[2] or why}")


def _start(argv: Sequence[str], said: int | IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0,
        start_new_session=True, cwd="/", env=login_environment(os.environ),
    )  # fmt: skip
