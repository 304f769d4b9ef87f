"""The target's tokenizer: prompts by its chat template, completions as the target wrote them.

Ids come from a tiktoken twin where the tokenizer has one, and from Hugging Face's own code where
not; both give the same.

A text in a user's message that looks like a special token stays text: it is marked before the
template is rendered and encoded without the added tokens after. Only the template itself, and what
the model generated, can put special tokens into a sample.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from functools import cached_property
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dflash.errors import InputInvalid
from dflash.twin import NoTwin, Twin, twin_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

# Markup of a model's own turns. In an assistant's earlier message it is what it looks like, and
# templates search for it there.
MODEL_MARKUP = frozenset(
    ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
)
PRIVATE_USE = range(0xE0F0, 0xF000)


class TargetTokenizer:
    """Loads from a local folder only; every method is deterministic."""

    def __init__(self, path: Path | str, *, fast: bool = True) -> None:
        self.path = Path(path)
        self.why_slow = "" if fast else "asked for"
        self._hf = _load(self.path)
        self.added: dict[str, int] = {
            token.content: number for number, token in self._hf.added_tokens_decoder.items()
        }
        self.vocab_size = len(self._hf)
        self.eos_token_id: int | None = self._hf.eos_token_id
        self.special_ids = frozenset(self.added.values())
        self.markup_ids = frozenset(
            number for content, number in self.added.items() if content in MODEL_MARKUP
        )
        self.think_open = self.added.get("<think>")
        self.think_close = self.added.get("</think>")

    @property
    def role_ids(self) -> frozenset[int]:
        """Ids that begin, end or pad a text."""
        hf = self._hf
        found = (hf.eos_token_id, hf.bos_token_id, hf.pad_token_id, hf.unk_token_id)
        return frozenset(number for number in found if number is not None)

    @property
    def chat_template(self) -> str | None:
        """None where the folder has no template, or several."""
        template = self._hf.chat_template
        return template if isinstance(template, str) else None

    @property
    def knows_thinking(self) -> bool:
        return self.think_open is not None and self.think_close is not None

    def encode_prompt(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> np.ndarray:
        """Ids [n] int32 up to and including the generation prompt, from one rendering."""
        return self.encode_rendered(*self.render_safely(messages, tools, template_kwargs))

    def render_safely(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> tuple[str, str]:
        """The prompt's text, and the mark that breaks look-alikes in it, if there are any."""
        if not self._has_lookalike(messages) and not self._has_lookalike(tools):
            return self.render(messages, tools, template_kwargs), ""
        mark = self._free_mark(messages, tools)
        marked = [
            self._mark(message, mark, keep=message.get("role") == "assistant")
            for message in messages
        ]
        return self.render(marked, self._mark(tools, mark, keep=False), template_kwargs), mark

    def encode_rendered(self, text: str, mark: str) -> np.ndarray:
        return self._encode_marked(text, mark) if mark else self._encode(text)

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        template_kwargs: dict[str, Any] | None = None,
    ) -> str:
        try:
            return self._hf.apply_chat_template(
                _with_mapped_arguments(messages),
                tools=tools or None,
                tokenize=False,
                add_generation_prompt=True,
                **(template_kwargs or {}),
            )
        except Exception as error:  # a template may raise anything at all
            raise InputInvalid(
                f"the chat template of {self.path} cannot render these messages: "
                f"{type(error).__name__}: {error}",
                "Check roles and contents of the prompt, or pass other --template-kwargs.",
            ) from error

    def encode_completion(self, text: str) -> np.ndarray:
        """Ids [n] int32 of what the model wrote: markup in it is the model's own."""
        return self._encode(text)

    def cut_at_added(self, text: str) -> list[str]:
        """Plain pieces at even places, added tokens at odd ones."""
        return self._added_pattern.split(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._hf.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def describe(self) -> dict[str, Any]:
        """The manifest's entry; equal fingerprints give equal ids for equal conversations."""
        return {
            "fingerprint": self.fingerprint,
            "vocab_size": self.vocab_size,
            "eos_token_id": self.eos_token_id,
            "pad_token_id": self._hf.pad_token_id,
            "bos_token_id": self._hf.bos_token_id,
            "special_ids": sorted(self.special_ids),
            "think_open": self.think_open,
            "think_close": self.think_close,
        }

    @cached_property
    def fingerprint(self) -> str:
        text = json.dumps([self._description, self._hf.chat_template], sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def twin(self) -> Twin | None:
        """None with the reason in `why_slow`."""
        if self.why_slow:
            return None
        try:
            return twin_of(
                self._description, self._added_pattern, self.encode_slowly, self._normalize
            )
        except NoTwin as error:
            self.why_slow = str(error)
            return None

    @cached_property
    def _description(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self._hf.backend_tokenizer.to_str())
        return value

    def _encode(self, text: str, *, added: bool = True) -> np.ndarray:
        import numpy as np

        whole = _without_surrogates(text)
        found = self.twin.encode(whole, added=added) if self.twin is not None else None
        if found is None:
            ids = self.encode_slowly(whole) if added else self._encode_plain_hf(whole)
            found = np.array(ids, dtype=np.int32)
        return found

    def encode_slowly(self, text: str) -> list[int]:
        """By Hugging Face's own code: what the twin is held against."""
        ids: list[int] = self._hf.encode(text, add_special_tokens=False)
        return ids

    def _normalize(self, text: str) -> str:
        return str(self._hf.backend_tokenizer.normalizer.normalize_str(text))

    def _encode_plain_hf(self, text: str) -> list[int]:
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        return ids

    def _encode_marked(self, text: str, mark: str) -> np.ndarray:
        """Added tokens by id where the template wrote them, everything between as plain text."""
        import numpy as np

        parts = []
        for piece in self._added_pattern.split(text):
            if piece in self.added:
                parts.append(np.array([self.added[piece]], dtype=np.int32))
            elif piece:
                parts.append(self._encode(piece.replace(mark, ""), added=False))
        return np.concatenate(parts)

    @cached_property
    def _added_pattern(self) -> re.Pattern[str]:
        """Splits a text at its added tokens; what they begin with in common is sought first."""
        start = commonpath(list(self.added))
        longest_first = sorted(self.added, key=lambda content: (-len(content), content))
        rest = "|".join(re.escape(content.removeprefix(start)) for content in longest_first)
        if not self.added:
            rest = "(?!)"  # nothing
        return re.compile(f"({re.escape(start)}(?:{rest}))")

    @cached_property
    def _plain(self) -> Any:
        """The same vocabulary and merges without any added token."""
        from tokenizers import Tokenizer

        bare: dict[str, Any] = {
            "added_tokens": [],
            "post_processor": None,
            "truncation": None,
            "padding": None,
        }
        return Tokenizer.from_str(json.dumps({**self._description, **bare}))

    def _has_lookalike(self, value: Any) -> bool:
        if isinstance(value, str):
            return self._added_pattern.search(value) is not None
        if isinstance(value, dict):
            return any(map(self._has_lookalike, value)) or any(
                map(self._has_lookalike, value.values())
            )
        return isinstance(value, list) and any(map(self._has_lookalike, value))

    def _mark(self, value: Any, mark: str, *, keep: bool) -> Any:
        """A copy in which each look-alike is broken by the mark after its first character."""
        if isinstance(value, str):
            return self._added_pattern.sub(
                lambda found: (
                    found[0]
                    if keep and found[0] in MODEL_MARKUP
                    else found[0][0] + mark + found[0][1:]
                ),
                value,
            )
        if isinstance(value, dict):
            return {
                self._mark(key, mark, keep=keep): self._mark(item, mark, keep=keep)
                for key, item in value.items()
            }
        if isinstance(value, list):
            return [self._mark(item, mark, keep=keep) for item in value]
        return value

    def _free_mark(self, *values: Any) -> str:
        used = json.dumps(values, ensure_ascii=False)
        return next(chr(code) for code in PRIVATE_USE if chr(code) not in used)


def _with_mapped_arguments(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tool arguments as a mapping: the OpenAI form is a JSON string, newer templates refuse it."""
    return [_mapped(message) if message.get("tool_calls") else message for message in messages]


def _mapped(message: dict[str, Any]) -> dict[str, Any]:
    calls = []
    for call in message["tool_calls"]:
        function = dict(call.get("function") or {})
        if isinstance(function.get("arguments"), str):
            # No JSON: the template shows it as the text it is, or refuses it by itself.
            with contextlib.suppress(ValueError):
                function["arguments"] = json.loads(function["arguments"] or "{}")
        calls.append({**call, "function": function} if function else call)
    return {**message, "tool_calls": calls}


def _without_surrogates(text: str) -> str:
    """Half an emoji from a cut JSON escape has no UTF-8 form; it becomes the replacement mark."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return text


def _load(path: Path) -> Any:
    if not (path / "tokenizer.json").is_file():
        raise InputInvalid(
            f"{path} holds no tokenizer.json", "Point --tokenizer at the target model's folder."
        )
    # Without it a folder name that is wrong in any way is looked up on a hub for minutes.
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(path))
    if not tokenizer.is_fast:
        raise InputInvalid(f"the tokenizer of {path} has no fast form", "Convert it first.")
    if not tokenizer.chat_template:
        raise InputInvalid(
            f"the tokenizer of {path} has no chat template",
            "Base models have none: use the instruct model's folder.",
        )
    return tokenizer
