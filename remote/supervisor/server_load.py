"""What an inference server carries, and whether it still works: its /metrics and one probe.

A scheduler that hangs leaves most answers of its server as they were, `/metrics` among them, with
numbers that stand still. So the numbers are given as they are, with one that grows whenever
anything is done; whoever asks again can tell.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import TYPE_CHECKING

from remote.supervisor.checks_http import ask, generated, generation_request, json_of, refusal
from remote.supervisor.facts import public_ports
from remote.supervisor.verdicts import SHOWN, Verdict, verdict

if TYPE_CHECKING:
    from remote.supervisor.base import JSON

LINE = re.compile(r"^(\w+):(\w+)(?:\{[^}]*\})?\s+(\S+)", re.MULTILINE)
# What each engine calls it, with SGLang's name first. Of several series, such as one per rank,
# the largest counts for a gauge.
GAUGES = {
    "running": ("num_running_reqs", "num_requests_running"),
    "queued": ("num_queue_reqs", "num_requests_waiting"),
    "tok_s": ("gen_throughput",),
    "kv_used": ("token_usage", "kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "state_used": ("mamba_usage",),
    "cache_hits": ("cache_hit_rate",),
    "accept_length": ("spec_accept_length",),
}
TOKENS = "generation_tokens_total"
# The first counts whole requests only, and a long thought takes half an hour.
MOVING = (
    TOKENS, "realtime_tokens_total", "prompt_tokens_total", "num_requests_total",
    "prefill_effective_tokens_total", "request_success_total",
)  # fmt: skip
# Of the last batch, so they stand still with it. SGLang has the acceptance length without drafts
# too, as 0, and says 1 or what was last when nothing runs.
OF_LAST_BATCH = ("cache_hits", "accept_length")
METRICS_S = 10.0


def check_server_load(args: JSON) -> Verdict:
    """The server answers, and does the work of a probe where one is asked for."""
    base, probe = str(args["url"]).rstrip("/"), str(args.get("probe", "none"))
    limit = float(args.get("timeout_s", 30))
    found: JSON = {"url": base}
    try:
        status, body = ask(base + "/metrics", min(limit, METRICS_S))
        if status == 200:
            found.update(load_of(body.decode("utf-8", "replace")))
        else:
            found["no_metrics"] = status
    except OSError as error:
        found["no_metrics"] = refusal(error)
    ports = {int(port) for port in args.get("ports") or [urllib.parse.urlsplit(base).port or 80]}
    found["public"] = sorted(ports & set(public_ports()))
    good = isinstance(found.get("no_metrics", 404), int)
    stands = found.get("moved") in (None, args.get("moved"))
    if probe != "none" and stands:  # a probe is work; one that works needs none
        good, found["probe"] = _probe(probe, base, args, limit)
    return verdict(good, **found)


def load_of(text: str) -> JSON:
    """Load from Prometheus text; what the engine does not have or cannot know is left out."""
    found: JSON = {}
    sums: dict[str, float] = {}
    for _engine, name, value in LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        if number != number:
            continue
        if name in MOVING:
            sums[name] = sums.get(name, 0.0) + number
        for key, names in GAUGES.items():
            if name in names:
                found[key] = max(found.get(key, 0.0), number)
    for key in OF_LAST_BATCH:
        if not (found.get("running") and found.get(key)):
            found.pop(key, None)
    if sums:
        found["moved"] = sum(sums.values())
        found["tokens"] = sums.get(TOKENS, 0.0)
    return found


def _probe(kind: str, base: str, args: JSON, limit: float) -> tuple[bool, JSON]:
    """`health` costs the server one token, `generate` proves that a text comes back."""
    try:
        if kind == "health":
            status, body = ask(base + "/health", limit)
            return status == 200, {"asked": kind, "status": status}
        model, api = str(args.get("model", "")), str(args.get("api", "openai"))
        status, body = ask(*generation_request(base, model, api, limit))
    except OSError as error:
        return False, {"asked": kind, "found": refusal(error), "within_s": limit}
    if status != 200:
        said = body.decode("utf-8", "replace")[:SHOWN]
        return False, {"asked": kind, "status": status, "body": said}
    count = generated(json_of(body))[1]
    return count > 0, {"asked": kind, "status": status, "ids": count}
