"""Checks that ask a server over HTTP."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from remote.supervisor.verdicts import SHOWN, Verdict, dotted, verdict

if TYPE_CHECKING:
    from remote.supervisor.base import JSON


def ask(url: str, timeout_s: float, body: JSON | None = None) -> tuple[int, bytes]:
    """Status and body of an HTTP request, never through a proxy."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"{url!r} is no http address")
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
    except http.client.HTTPException as error:
        raise OSError(f"its answer is no HTTP ({type(error).__name__})") from error


def json_of(body: bytes) -> Any:
    return json.loads(body.decode("utf-8"))


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
    text, count = generated(json_of(body))
    return verdict(
        count > 0, url=base, model=model, text=text[:200], ids=count, seconds=seconds, served=served
    )


def served_models(base: str, limit: float) -> list[str] | None:
    status, body = ask(base + "/v1/models", limit)
    if status != 200:
        return None
    try:
        return [str(entry["id"]) for entry in json_of(body)["data"]]
    except (ValueError, KeyError, TypeError):
        return None


def generation_request(base: str, model: str, api: str, limit: float) -> tuple[str, float, JSON]:
    if api == "sglang":
        sampling = {"max_new_tokens": 4, "temperature": 0}
        return base + "/generate", limit, {"text": "Count: 1, 2,", "sampling_params": sampling}
    if api == "openai":
        messages = [{"role": "user", "content": "Say hello."}]
        body = {"model": model, "messages": messages, "max_tokens": 4, "temperature": 0}
        return base + "/v1/chat/completions", limit, body
    raise ValueError(f"api is sglang or openai, not {api!r}")


def generated(answer: Any) -> tuple[str, int]:
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


def check_http_identity(args: JSON) -> Verdict:
    url, field = str(args["url"]), str(args["field"])
    try:
        status, body = ask(url, float(args.get("timeout_s", 10)))
    except OSError as error:
        return verdict(False, url=url, found=refusal(error))
    if status != 200:
        return verdict(False, url=url, status=status)
    found = dotted(json_of(body), field)
    return verdict(found == args["equals"], url=url, field=field, found=found)
