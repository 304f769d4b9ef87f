"""Whether a server that runs still serves: busy is told from wedged, and one bad answer is none.

Pure: what was known, what was seen, and the time on our own clock go in; what is known now comes
out. A wedged scheduler leaves /metrics answering with numbers that stand still, and a busy one
fails a health check while its numbers move. So a strike counts only while nothing moves, several
in a row are needed, and any movement wipes them out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Condition = Literal["well", "doubted", "wedged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How often is looked, and what is believed only then. Seconds, but for the strikes."""

    every_s: float = 10.0
    """Between two looks at /metrics, which cost the server nothing."""
    probe_every_s: float = 30.0
    """Between two probes while nothing moves; each leaves work behind when it times out."""
    probe_timeout_s: float = 30.0
    """SGLang's own health check takes 20 s to say no."""
    deadline_s: float = 120.0
    """Requests run and nothing moves for so long: a health check is not believed any more."""
    strikes: int = 3
    """Failed probes in a row, with nothing moving, that make a server unhealthy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What is known of one server. The clock is our own and monotonic."""

    looked_at: float = float("-inf")
    probed_at: float = float("-inf")
    moved: float | None = None
    moved_at: float = 0.0
    tokens: float | None = None
    tok_s: float | None = None
    strikes: int = 0
    struck_at: float = 0.0
    """When the first of the strikes was."""
    ready: bool = True
    """Unlike after three strikes; then only work that gets done counts."""


def question(watched: Watched, patience: Patience, now: float) -> dict[str, Any] | None:
    """What is asked of the server now; None when it is not time yet."""
    if now - watched.looked_at < patience.every_s:
        return None
    asked: dict[str, Any] = {"timeout_s": patience.probe_timeout_s, "probe": "none"}
    if now - watched.probed_at >= patience.probe_every_s:
        stands = watched.moved is not None and now - watched.moved_at >= patience.deadline_s
        asked["probe"] = "generate" if stands or not watched.ready else "health"
    if watched.moved is not None:
        asked["moved"] = watched.moved
    return asked


def judge(
    watched: Watched, found: Mapping[str, Any], patience: Patience, now: float
) -> tuple[Watched, Condition, str]:
    """What is known after a look, in which condition the server is, and why."""
    moved = _number(found.get("moved"))
    probe = found.get("probe")
    tokens, known = _number(found.get("tokens")), watched.tokens
    seconds = now - watched.looked_at
    rate = (tokens - known) / seconds if tokens is not None and known is not None else None
    after = replace(
        watched,
        looked_at=now,
        probed_at=now if probe else watched.probed_at,
        tokens=watched.tokens if tokens is None else tokens,
        tok_s=max(0.0, rate) if rate is not None else watched.tok_s,
    )
    if moved is not None and moved != watched.moved:
        after = replace(after, moved=moved, moved_at=now, strikes=0, ready=True)
        return after, "well", ""
    if probe is None:
        if "no_metrics" in found and not isinstance(found["no_metrics"], int) and watched.ready:
            return after, "doubted", f"it does not answer: {found['no_metrics']}"
        return after, "well" if watched.ready else "wedged", ""
    if _passed(probe) and (watched.ready or probe.get("asked") == "generate"):
        if not found.get("running") or probe.get("asked") == "generate":
            after = replace(after, moved_at=now)  # idle, or it just worked: nothing stands still
        return replace(after, strikes=0, ready=True), "well", ""
    return _strike(after, found, patience, now)


def _strike(
    watched: Watched, found: Mapping[str, Any], patience: Patience, now: float
) -> tuple[Watched, Condition, str]:
    first = now if not watched.strikes else watched.struck_at
    after = replace(watched, strikes=watched.strikes + 1, struck_at=first)
    said = _asked(found["probe"])
    if after.strikes > 1:
        said += f", {after.strikes} times in a row over {now - first:.0f} s"
    if watched.moved is None:
        said += "; it has no /metrics that would tell whether it is busy"
    else:
        running, queued = found.get("running", 0), found.get("queued", 0)
        said += f"; nothing moved meanwhile ({running:g} running, {queued:g} queued)"
    if after.strikes < patience.strikes:
        return after, "doubted", said
    return replace(after, ready=False), "wedged", said


def _passed(probe: Mapping[str, Any]) -> bool:
    return probe.get("status") == 200 and probe.get("ids", 1) > 0


def _asked(probe: Mapping[str, Any]) -> str:
    what = "a generation of four tokens" if probe.get("asked") == "generate" else "/health"
    if "status" in probe:
        return f"{what} was answered with {probe['status']}"
    return f"{what} was not answered ({probe.get('found')})"


def load_text(found: Mapping[str, Any], watched: Watched) -> dict[str, Any]:
    """The load as a progress line, which every front knows how to show."""
    metrics: dict[str, float] = {}
    if watched.tok_s is not None:
        metrics["tok/s"] = round(watched.tok_s, 1)
    metrics |= {
        name: found[key]
        for key, name in (
            ("kv_used", "KV used"), ("state_used", "state pool used"), ("cache_hits", "cache hits"),
            ("accept_length", "accept length"),
        )
        if found.get(key)  # models without such a pool, and servers without drafts, say 0
    }  # fmt: skip
    message = f"{found.get('running', 0):g} running, {found.get('queued', 0):g} queued"
    if "no_metrics" in found:
        message = "no metrics"
    return {"kind": "load", "message": message, "metrics": metrics}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
