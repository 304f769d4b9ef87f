"""A rehearsal on a real host: lose the connection, adopt, verify, stop, and show what survived.

The jobs are harmless (they count and sleep), have attempts and tasks of their own, and are no part
of the graph: nothing is written to the database.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote import Host, JobSpec, JobStatus, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LINES = 100
LAST_WORDS = "the drill's last words: é ✓"
EXIT = 7
SCRIPT = f"""\
i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo "line $i of the drill"; sleep 0.02; done
echo "{LAST_WORDS}"; exit {EXIT}"""
STUBBORN = 'trap "" TERM; (trap "" TERM; exec sleep 600) & sleep 600'
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that was tried, and whether it held."""

    name: str
    ok: bool
    found: str


class Drill:
    """Runs on `meet()`'s host, each call of which is a client that knows nothing yet."""

    def __init__(self, meet: Callable[[], Host]) -> None:
        self._meet = meet
        self._name = f"drill-{uuid.uuid4().hex[:12]}"

    def run(self) -> Iterator[Step]:
        """Every step as it is done; ends early when one makes the next impossible.

        Raises:
            RemoteError: the host cannot be reached in the first place, or refuses jobs.
        """
        first = self._meet()
        try:
            spec = self._spec("count", SCRIPT)
            status = first.launch(spec)
            yield Step(name="launch", ok=status.state in ("running", "exited"), found=_of(status))
            half, _ = _read(first, spec.attempt, at_most=500)
        finally:
            first.close()  # in the middle of it: as a laptop that closes
        yield Step(
            name="cut", ok=True, found=f"connection closed after {len(half)} bytes of output"
        )
        second = self._meet()
        try:
            yield from self._adopt(second, spec, half)
            yield from self._stop(second)
        finally:
            second.close()

    def _adopt(self, host: Host, spec: JobSpec, half: bytes) -> Iterator[Step]:
        status = _patiently(lambda: host.poll([spec.attempt])[spec.attempt])
        alive = status.state in ("running", "exited")
        yield Step(name="adopt", ok=alive, found=f"{_of(status)}, found again by name alone")
        again = _patiently(lambda: host.launch(spec))
        yield Step(
            name="launch again",
            ok=again.pid in (None, status.pid),
            found="adopted, not started anew",
        )
        ended = _ended(host, spec.attempt)
        yield Step(
            name="exit", ok=ended.exit_code == EXIT, found=f"{_of(ended)}; {EXIT} was expected"
        )
        rest, restarted = _read(host, spec.attempt, offset=len(half))
        whole = half + rest
        right = whole == _expected() and not restarted
        yield Step(
            name="log",
            ok=right,
            found=f"{len(whole)} bytes, read on from byte {len(half)}: "
            + ("each as it was written" if right else "NOT what was written"),
        )

    def _stop(self, host: Host) -> Iterator[Step]:
        spec = self._spec("stubborn", STUBBORN)
        host.launch(spec)
        began = time.monotonic()
        report = host.stop(spec.attempt, grace_s=1)
        seconds = time.monotonic() - began
        left = ", ".join(str(dict(one)) for one in report.survivors) or "nothing left of it"
        yield Step(
            name="stop",
            ok=report.state == "stopped",
            found=f"a job that ignores TERM: {report.state} in {seconds:.1f} s, {left}",
        )

    def _spec(self, part: str, script: str) -> JobSpec:
        name = f"{self._name}-{part}"
        return JobSpec(
            attempt=name,
            task=name,
            generation=1,
            argv=("sh", "-c", script),
            time_limit_s=LIMIT_S,
            grace_s=1,
        )


def _expected() -> bytes:
    lines = [f"line {number} of the drill" for number in range(1, LINES + 1)]
    return "".join(f"{line}\n" for line in [*lines, LAST_WORDS]).encode()


def _of(status: JobStatus) -> str:
    code = "" if status.exit_code is None else f" with code {status.exit_code}"
    return f"{status.state}{code}" + (f" as pid {status.pid}" if status.pid else "")


def _patiently(ask: Callable[[], JobStatus]) -> JobStatus:
    """An answer, however often it takes; for as long as the drill may last."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return ask()
        except Unreachable as error:
            if time.monotonic() > deadline:
                raise
            time.sleep(min(1.0, error.retry_in_s or 0.2))


def _ended(host: Host, attempt: str) -> JobStatus:
    deadline = time.monotonic() + LIMIT_S
    while True:
        status = _patiently(lambda: host.poll([attempt])[attempt])
        if status.state != "running" or time.monotonic() > deadline:
            return status
        time.sleep(0.2)


def _read(
    host: Host, attempt: str, *, offset: int = 0, at_most: int | None = None
) -> tuple[bytes, bool]:
    """The output from an offset on; until there is some, if `at_most` is given."""
    data, restarted, file_id = b"", False, ""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        limit = (at_most - len(data)) if at_most else 1 << 18
        chunk = host.read_log(
            attempt, "out", offset=offset + len(data), limit=limit, file_id=file_id
        )
        file_id = chunk.file_id
        restarted = restarted or chunk.restarted
        data += chunk.data
        if at_most is None and chunk.end >= chunk.size:
            break
        if at_most is not None and len(data) >= at_most:
            break
    return data, restarted
