"""The prompts of an evaluation as token ids: held-out rows of a tokenized set, or a prompt file.

Which prompts are taken does not depend on file order: they are ordered by a digest of seed and id,
so that the first N of a sorted file are not one topic.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dflash.errors import InputInvalid
from dflash.files import sha256_file
from dflash.prompts import load_prompts
from dflash.shards import MANIFEST, TokenizedSet
from dflash.tokenizer import TargetTokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

THINKING: dict[str, dict[str, Any]] = {
    "default": {},
    "on": {"enable_thinking": True},
    "off": {"enable_thinking": False},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrompt:
    id: str
    tokens: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """The chosen prompts, where they came from, and what was left out and why."""

    prompts: list[TokenPrompt]
    source: dict[str, Any]
    skipped: dict[str, int] = field(default_factory=dict)


def from_tokenized(
    path: Path, *, split: str, limit: int | None, longest: int | None, seed: int
) -> PromptSet:
    """A row's prompt is what stands before its first token with loss."""
    rows = TokenizedSet(path, split)
    source = {
        "kind": "tokenized",
        "path": str(path),
        "split": split,
        "manifest_sha256": sha256_file(path / MANIFEST),
        "tokenizer": rows.manifest.get("tokenizer", {}),
        "template_kwargs": rows.manifest.get("template_kwargs", {}),
        "rows": len(rows),
    }
    if len(rows) == 0:
        raise InputInvalid(
            f"{path} has no rows in its split {split!r}",
            "Tokenize with a held-out share (--split train=0.9,heldout=0.1), or use --prompts.",
        )
    found = (rows.row(i) for i in range(len(rows)))
    prompts = (
        TokenPrompt(id=row.id, tokens=row.input_ids[: _first(row.loss_mask)].tolist())
        for row in found
    )
    return _choose(prompts, source=source, limit=limit, longest=longest, seed=seed)


def from_messages(
    path: Path, *, target: Path, thinking: str, limit: int | None, longest: int | None, seed: int
) -> PromptSet:
    """Each line's messages through the target's own chat template, generation prompt added."""
    found = load_prompts(path)
    tokenizer = _tokenizer(target)
    kwargs = THINKING[thinking]
    source = {
        "kind": "messages",
        "path": str(path),
        "sha256": sha256_file(path),
        "template_sha256": hashlib.sha256((tokenizer.chat_template or "").encode()).hexdigest(),
        "template_kwargs": kwargs,
        "thinking": thinking,
    }
    prompts = (TokenPrompt(id=p.id, tokens=_rendered(tokenizer, p, kwargs, path)) for p in found)
    return _choose(prompts, source=source, limit=limit, longest=longest, seed=seed)


def _tokenizer(target: Path) -> TargetTokenizer:
    tokenizer = TargetTokenizer(target)
    if tokenizer.chat_template is None:
        raise InputInvalid(
            f"the tokenizer in {target} has no chat template",
            "Add chat_template.jinja there, or evaluate with --data.",
        )
    return tokenizer


def _rendered(tokenizer: TargetTokenizer, prompt: Any, kwargs: Any, path: Path) -> list[int]:
    try:
        ids = tokenizer.encode_prompt(prompt.messages, prompt.tools, kwargs)
    except InputInvalid as error:
        raise InputInvalid(f"{path} {prompt.id!r}: {error}", error.hint) from error
    found: list[int] = ids.tolist()
    return found


def _choose(
    prompts: Iterable[TokenPrompt],
    *,
    source: dict[str, Any],
    limit: int | None,
    longest: int | None,
    seed: int,
) -> PromptSet:
    skipped = {"empty": 0, "too_long": 0, "repeated_id": 0}
    kept: dict[str, TokenPrompt] = {}
    for prompt in prompts:
        if not prompt.tokens:
            skipped["empty"] += 1
        elif longest is not None and len(prompt.tokens) > longest:
            skipped["too_long"] += 1
        elif prompt.id in kept:
            skipped["repeated_id"] += 1
        else:
            kept[prompt.id] = prompt
    if not kept:
        reasons = ", ".join(f"{count} {name}" for name, count in skipped.items() if count)
        raise InputInvalid(
            f"no prompt is left in {source['path']} ({reasons or 'it is empty'})",
            "A prompt needs at least one token before the first one with loss; "
            "raise --max-prompt-tokens when they are too long.",
        )

    def key(prompt: TokenPrompt) -> bytes:
        return hashlib.sha256(f"{seed} {prompt.id}".encode()).digest()

    return PromptSet(prompts=sorted(kept.values(), key=key)[:limit], source=source, skipped=skipped)


def _first(mask: Any) -> int:
    """Index of the first token with loss; 0 (an empty prompt) when there is none."""
    return int(mask.argmax()) if len(mask) else 0
