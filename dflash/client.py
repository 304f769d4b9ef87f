"""One chat completion over HTTP: what is asked of each kind of server, and who answers there.

SGLang returns the exact token ids, with the stop token; training data should come from there. For
other OpenAI-compatible servers there is only text. Every outcome is an Answer or one of the three
errors of `outcomes`.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from dflash.answers import Answer, Api, read_answer
from dflash.outcomes import Refused, ServerWrong, Trouble, Unavailable

if TYPE_CHECKING:
    import httpx

    from dflash.prompts import Prompt

Thinking = Literal["on", "off", "default"]
# Refusals that say nothing about the prompt: wrong address, wrong key, wrong kind of server.
MISCONFIGURED = (401, 403, 404, 405)
TROUBLES = {
    408: Trouble.BUSY, 425: Trouble.BUSY, 429: Trouble.BUSY, 503: Trouble.BUSY,
    502: Trouble.GATEWAY, 504: Trouble.GATEWAY,
}  # fmt: skip
TOO_LONG = re.compile(
    r"longer than|too long|exceed|context[ _-]length|maximum.{0,20}length", re.IGNORECASE
)
LONGEST_PAUSE_S = 60.0
ASIDE_S = 5.0
HEALTH_S = 40.0  # SGLang takes 20 s to say no


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What must stay the same over all runs into one folder, `opened` apart."""

    model: str
    api: Api = "sglang"
    thinking: Thinking = "default"
    sampling: dict[str, Any] = field(default_factory=dict)
    system: str | None = None
    turns: str = "keep"
    opened: bool = False
    """The chat template ends the prompt with `<think>`: found out anew by each run."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "api": self.api,
            "thinking": self.thinking,
            "sampling": self.sampling,
            "system": self.system,
            **({"turns": self.turns} if self.turns != "keep" else {}),
        }


def request_body(prompt: Prompt, settings: Settings, *, rid: str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": settings.model, "messages": prompt.messages, "stream": False}
    body.update(settings.sampling)
    if "seed" in body:
        # One seed for all prompts would give all of them the same random numbers.
        body["seed"] = seed_for(body["seed"], prompt.id)
    if prompt.tools:
        body["tools"] = prompt.tools
    if settings.thinking != "default":
        body["chat_template_kwargs"] = {"enable_thinking": settings.thinking == "on"}
    if settings.api == "sglang":
        body.update(
            rid=rid,
            return_token_ids=True,
            separate_reasoning=False,
            skip_special_tokens=False,
            no_stop_trim=True,
        )
    return body


def seed_for(seed: int, prompt_id: str) -> int:
    digest = hashlib.sha256(f"{seed}:{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1  # servers keep it in a signed 32-bit integer


async def complete(
    http: httpx.AsyncClient, url: str, prompt: Prompt, settings: Settings, *, rid: str
) -> Answer:
    """Ask one server once."""
    import httpx

    body = request_body(prompt, settings, rid=rid)
    try:
        response = await http.post(f"{url}/v1/chat/completions", json=body)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise Unavailable(Trouble.CONNECT, f"cannot connect ({_name(error)})") from error
    except httpx.TimeoutException as error:
        raise Unavailable(Trouble.TIMEOUT, f"no answer in time ({_name(error)})") from error
    except httpx.TransportError as error:
        raise Unavailable(Trouble.LOST, f"connection lost ({_name(error)})") from error
    _check_status(url, response)
    try:
        return read_answer(response.json(), settings.api, opened=settings.opened)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Unavailable(Trouble.SHAPE, f"an answer of another shape ({_name(error)})") from error


def _check_status(url: str, response: httpx.Response) -> None:
    status = response.status_code
    if status == 200:
        return
    text = _error_text(response)
    if status in MISCONFIGURED:
        raise ServerWrong(
            f"{url} answers {status} to a chat completion: {text}",
            "Check --server (without /v1), --api and --model.",
        )
    if status in TROUBLES:
        raise Unavailable(TROUBLES[status], f"{status}: {text}", pause=_asked_pause(response))
    if status >= 500 or "uplicate request" in text:  # our own, which it has not given up yet
        raise Unavailable(Trouble.ERROR, f"{status}: {text}")
    too_long = status == 413 or TOO_LONG.search(text)
    raise Refused("too_long" if too_long else "bad_request", f"{status}: {text}")


def _asked_pause(response: httpx.Response) -> float:
    """Retry-After in seconds; its other form, a date, is left aside."""
    with contextlib.suppress(ValueError):
        return min(LONGEST_PAUSE_S, max(0.0, float(response.headers.get("retry-after", "0"))))
    return 0.0


async def identify(http: httpx.AsyncClient, url: str, settings: Settings) -> dict[str, Any]:
    """Who answers there. A wrong model name in a request is served all the same, so ask first."""
    import httpx

    path = "/model_info" if settings.api == "sglang" else "/v1/models"
    try:
        response = await http.get(url + path, timeout=30)
    except httpx.TransportError as error:
        raise Unavailable(Trouble.CONNECT, f"cannot connect ({_name(error)})") from error
    status = response.status_code
    if settings.api == "sglang" and (status >= 500 or status in TROUBLES):
        raise Unavailable(TROUBLES.get(status, Trouble.ERROR), f"{status} from {path}")
    if status != 200:
        if settings.api == "sglang":
            raise ServerWrong(
                f"{url}{path} answers {status}: this is no SGLang server",
                "Check --server, or use --api openai.",
            )
        return {}  # some servers list no models; the first completion will tell
    try:
        return _checked_identity(url, response.json(), settings)
    except (ValueError, AttributeError, TypeError):
        raise ServerWrong(
            f"{url}{path} answers with something else than a server's description",
            "Check --server and --api.",
        ) from None


def _checked_identity(url: str, info: dict[str, Any], settings: Settings) -> dict[str, Any]:
    if settings.api == "sglang":
        keep = ("model_path", "served_model_name", "weight_version", "tokenizer_path")
        found = {name: info[name] for name in keep if info.get(name) is not None}
        names = [found.get("served_model_name"), found.get("model_path")]
    else:
        names = [row.get("id") for row in info.get("data", []) if isinstance(row, dict)]
        names += [str(name).split("@")[0] for name in names]
        found = {"models": names}
    known = [str(name) for name in names if name]
    if known and settings.model not in known:
        raise ServerWrong(
            f"{url} serves {known[0]!r}, not {settings.model!r}",
            "Check --model and that no other server took that port.",
        )
    return found


async def healthy(http: httpx.AsyncClient, url: str) -> None:
    """A server that is back does some work first: most other answers come from one that hangs too.

    Those that have no such address say nothing by that.
    """
    import httpx

    try:
        response = await http.get(f"{url}/health", timeout=HEALTH_S)
    except httpx.TransportError as error:
        raise Unavailable(Trouble.CONNECT, f"cannot connect ({_name(error)})") from error
    if response.status_code >= 500:
        raise Unavailable(Trouble.BUSY, f"{response.status_code} from /health")


def refuse_another(url: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """A server that came back under the same name must have the same weights.

    The folder they lie in may differ: a copy in memory is made anew elsewhere.
    """
    for name, of in (("weight_version", str), ("model_path", _last_part)):
        if name in before and name in now and of(before[name]) != of(now[name]):
            raise ServerWrong(
                f"{url} came back with another model: {name} {before[name]!r} -> {now[name]!r}",
                "Start it with the model that the other rows were made by.",
            )


def _last_part(path: Any) -> str:
    return PurePosixPath(str(path)).name


async def load_of(http: httpx.AsyncClient, url: str) -> tuple[int, int] | None:
    """Requests that run and that wait there, where the server tells."""
    import httpx

    with contextlib.suppress(httpx.TransportError, ValueError, KeyError, TypeError):
        response = await http.get(f"{url}/v1/loads?include=core", timeout=ASIDE_S)
        if response.status_code == 200:
            rows = response.json()["loads"]
            return (
                sum(int(row["num_running_reqs"]) for row in rows),
                sum(int(row["num_waiting_reqs"]) for row in rows),
            )
    return None


def _error_text(response: httpx.Response) -> str:
    try:
        value = response.json()
    except ValueError:
        return response.text[:200].strip() or "no text"
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if message is None and isinstance(value, dict):
        message = value.get("message") or value.get("detail")
    return str(message or value)[:400]


def _name(error: Exception) -> str:
    return str(error) or type(error).__name__
