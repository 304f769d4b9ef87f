"""One inference server as a child: started on a free port, ready for certain, gone for certain.

Killing only the launcher of a server that loads leaves its children behind; so it gets a process
group of its own, and the group is ended and looked for. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING

from dflash.errors import DflashError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

LAST_LINES, LONGEST = 2, 150
COUNTERS = ("generation_tokens", "spec_verify_calls", "prompt_tokens", "cached_tokens")
POOLS = re.compile(r"max_total_num_tokens=\d+.*|max_running_requests is capped to .*")


class NotServing(DflashError):
    """It did not get ready, or died."""


@contextlib.contextmanager
def served(
    argv: Sequence[str], env: Mapping[str, str], *, url: str, token: str, log: Path, within_s: float
) -> Iterator[None]:
    """A server for as long as the block runs.

    Args:
        token: what `/model_info` gives as the weights' version, where the server has that; another
            server on the port would answer as well.

    Raises:
        NotServing: with its last words.
    """
    _require_free(url)
    with (
        log.open("wb") as out,
        subprocess.Popen(
            argv, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            _await_ready(process, url, token, log, within_s)
            yield
            if process.poll() is not None:
                raise NotServing(f"the server died: {last_words(log)}")
        finally:
            end(process)


def _require_free(url: str) -> None:
    port = urllib.parse.urlsplit(url).port or 80
    with socket.socket() as probe:
        probe.settimeout(2)
        if probe.connect_ex(("127.0.0.1", port)) == 0:
            raise NotServing(
                f"port {port} is taken, perhaps by the server of an earlier run",
                "Stop what listens there, or choose another port.",
            )


def _await_ready(
    process: subprocess.Popen[bytes], url: str, token: str, log: Path, within_s: float
) -> None:
    deadline = time.monotonic() + within_s
    while True:
        if process.poll() is not None:
            raise NotServing(f"ended with {process.returncode}: {last_words(log)}")
        if get(url + "/health", 30) is not None:
            info = json.loads(get(url + "/model_info", 30) or b"{}")
            found = info.get("weight_version", token)
            if found != token:
                raise NotServing(f"another server answers at {url}", "Choose another port.")
            return
        if time.monotonic() > deadline:
            raise NotServing(f"not ready within {within_s:.0f} s: {last_words(log)}")
        time.sleep(0.5)


def end(process: subprocess.Popen[bytes], grace_s: float = 20.0) -> None:
    """TERM, grace, KILL to the whole group; returns when nobody of it is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_s)
    until = time.monotonic() + grace_s
    while time.monotonic() < until:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            break
        process.poll()
        time.sleep(0.05)
    process.wait()


def get(url: str, timeout_s: float, *, post: bool = False) -> bytes | None:
    """The body of a 200, never by way of a proxy; None for anything else."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url, data=b"" if post else None)  # noqa: S310
        with opener.open(request, timeout=timeout_s) as answer:
            body: bytes = answer.read()
            return body
    except (OSError, urllib.error.URLError):
        return None


def last_words(log: Path) -> str:
    every = [line for line in _text(log).splitlines() if line.strip()]
    # Without the program text of tracebacks: it quotes messages that were not raised.
    lines = [line.strip() for line in every if not line[0].isspace()] or every[-LAST_LINES:]
    told = [line for line in lines if re.search(r"error|exception", line, re.IGNORECASE)]
    said = (line[:LONGEST] for line in (told or lines)[-LAST_LINES:])
    return " | ".join(said) or "it said nothing"


def pools(log: Path) -> list[str]:
    """What it says of the sizes of its pools: they decide how many requests run together."""
    return list(dict.fromkeys(found.group(0)[:200] for found in POOLS.finditer(_text(log))))


def _text(log: Path) -> str:
    return log.read_bytes()[-(1 << 20) :].decode("utf-8", "replace")


def counters(url: str) -> dict[str, float]:
    """How much SGLang has done since its start, by what it calls it; nothing of other engines.

    Its gauges are of the last batch, and stand when nothing runs: `spec_accept_length` then says 1,
    and 0 in a server that drafts nothing.
    """
    text = (get(url + "/metrics", 10) or b"").decode("utf-8", "replace")
    found: dict[str, float] = {}
    for name in COUNTERS:
        values = re.findall(rf"^sglang:{name}_total(?:\{{[^}}]*\}})? (\S+)", text, re.MULTILINE)
        if values:
            found[name] = sum(map(float, values))
    return found


def ratios(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """Tokens made at a time, where there are drafts, and prompt tokens found in the cache."""
    done = {name: after[name] - before.get(name, 0.0) for name in after}
    found = {}
    if done.get("spec_verify_calls"):
        made = done.get("generation_tokens", 0.0)
        found["accept_length"] = round(made / done["spec_verify_calls"], 3)
    if done.get("prompt_tokens") and "cached_tokens" in done:
        found["cache_hit_rate"] = round(done["cached_tokens"] / done["prompt_tokens"], 3)
    return found
