"""The machine we are on, as a host: the same protocol, without a network."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from remote.errors import Unreachable, UnsupportedHost
from remote.model import Result

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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


class LocalTransport:
    """Runs commands as children in a session of their own, so that our end is not theirs."""

    label = "local"
    host_key = ""
    way = ""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise UnsupportedHost(
                f"The host `local` needs Linux, this is {sys.platform}",
                hint="bind the role to a Linux machine over SSH; operating it from here works",
            )

    def run(self, argv: Sequence[str], *, input: bytes = b"", timeout: float) -> Result:  # noqa: A002
        try:
            child = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                env=login_environment(os.environ),
            )
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

    def bulk(self) -> LocalTransport:
        return self

    def close(self) -> None:
        """Nothing is held open."""
