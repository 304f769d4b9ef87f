"""One chat completion over HTTP: what is asked of each kind of server and how its answer is read.

SGLang returns the exact token ids, with the stop token; training data should come from there. For
other OpenAI-compatible servers there is only text. Every outcome is an Answer or one of three
errors: Refused (this prompt, for good), Unavailable (try again, elsewhere), ServerWrong (stop).
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from dflash.errors import DflashError

if TYPE_CHECKING:
    import httpx

    from dflash.prompts import Prompt

Api = Literal["sglang", "openai"]
Thinking = Literal["on", "off", "default"]
END_MARK = re.compile(r"(<\|[^<>|]{1,40}\|>|</s>|<eos>|<end_of_turn>)\s*$")
# Refusals that say nothing about the prompt: wrong address, wrong key, wrong kind of server.
MISCONFIGURED = (401, 403, 404, 405)
BUSY = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What must stay the same over all runs into one folder."""

    model: str
    api: Api = "sglang"
    thinking: Thinking = "default"
    sampling: dict[str, Any] = field(default_factory=dict)
    system: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "api": self.api,
            "thinking": self.thinking,
            "sampling": self.sampling,
            "system": self.system,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A finished completion as the server gave it."""

    completion: str
    reasoning: str | None
    content: str
    output_ids: list[int] | None
    input_ids: list[int] | None
    finish_reason: str
    matched_stop: int | str | None
    usage: dict[str, Any]

    @property
    def tokens(self) -> int:
        return int(self.usage.get("completion_tokens") or len(self.output_ids or ()))


class Refused(Exception):
    """The server will never answer this prompt: too long, malformed."""


class Unavailable(Exception):
    """No answer this time. `reached` is False when the request cannot have had any effect."""

    def __init__(self, reason: str, *, reached: bool, pause: bool = True) -> None:
        super().__init__(reason)
        self.reached = reached
        self.pause = pause  # whether the server itself should be left alone for a while


class ServerWrong(DflashError):
    """The server does not serve what was asked for; no prompt would change that."""


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
            return_output_ids_in_sglext=True,
            return_input_ids_in_sglext=True,
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
        raise Unavailable(f"cannot connect ({_name(error)})", reached=False) from error
    except httpx.TimeoutException as error:
        raise Unavailable(f"no answer in time ({_name(error)})", reached=True) from error
    except httpx.TransportError as error:
        raise Unavailable(f"connection lost ({_name(error)})", reached=True) from error
    _check_status(url, response)
    try:
        return read_answer(response.json(), settings.api)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise Unavailable(f"an answer of another shape ({_name(error)})", reached=True) from error


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
    if status in BUSY:
        # A full queue never took the request; a 500 may be this prompt's doing.
        raise Unavailable(f"{status}: {text}", reached=status == 500, pause=status != 500)
    raise Refused(f"{status}: {text}")


def read_answer(value: dict[str, Any], api: Api) -> Answer:
    """Read a body; raises KeyError, TypeError and the like when it is none."""
    choice = value["choices"][0]
    finish = choice["finish_reason"] or "stop"
    if finish == "abort":
        raise Unavailable("aborted by the server", reached=True, pause=False)
    message = choice["message"]
    text, split_off = message.get("content") or "", message.get("reasoning_content")
    if split_off:  # the server took the markers out: the raw text is only nearly this
        completion, reasoning, content = f"<think>{split_off}</think>{text}", split_off, text
    else:
        completion = text
        reasoning, content = split_thinking(text)
    output_ids, input_ids = _ids(value, choice)
    if api == "sglang" and value.get("sglext") is None and output_ids is None:
        raise ServerWrong(
            "the server returns no token ids",
            "Update it, or use --api openai and have the text encoded again.",
        )
    return Answer(
        completion=completion,
        reasoning=reasoning,
        content=content,
        output_ids=output_ids,
        input_ids=input_ids,
        finish_reason=finish,
        matched_stop=choice.get("matched_stop"),
        usage=value.get("usage") or {},
    )


def split_thinking(text: str) -> tuple[str | None, str]:
    """Reasoning and content for people; training reads the ids or the raw text instead."""
    shown = END_MARK.sub("", text)
    before, closed, after = shown.partition("</think>")
    if closed:
        return before.removeprefix("<think>"), after
    if shown.lstrip().startswith("<think>"):
        return shown.lstrip().removeprefix("<think>"), ""
    return None, shown


def _ids(
    value: dict[str, Any], choice: dict[str, Any]
) -> tuple[list[int] | None, list[int] | None]:
    extension = value.get("sglext") or {}
    output = extension.get("output_ids") or choice.get("response_token_ids")
    prompt = extension.get("input_ids") or choice.get("prompt_token_ids")
    return _flat(output), _flat(prompt)


def _flat(ids: Any) -> list[int] | None:
    """One list per choice, or the list itself; both shapes are sent."""
    if not ids:
        return None
    inner = ids[0] if isinstance(ids[0], list) else ids
    return [int(item) for item in inner] or None


async def identify(http: httpx.AsyncClient, url: str, settings: Settings) -> dict[str, Any]:
    """Who answers there. A wrong model name in a request is served all the same, so ask first."""
    import httpx

    path = "/model_info" if settings.api == "sglang" else "/v1/models"
    try:
        response = await http.get(url + path, timeout=30)
    except httpx.TransportError as error:
        raise Unavailable(f"cannot connect ({_name(error)})", reached=False) from error
    if response.status_code in BUSY and settings.api == "sglang":
        raise Unavailable(f"{response.status_code} from {path}", reached=False)
    if response.status_code != 200:
        if settings.api == "sglang":
            raise ServerWrong(
                f"{url}{path} answers {response.status_code}: this is no SGLang server",
                "Check --server, or use --api openai.",
            )
        return {}  # some servers list no models; the first completion will tell
    return _checked_identity(url, response.json(), settings)


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
