"""The audit itself: every row is looked at once, and only counts, digests and examples are kept.

`Eye` finds what is wrong with a row, and remembers prompts and answers to know them again. `Tally`
counts what was found; several can count the same rows. Memory grows by some 50 bytes a row.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash.audit_report import distribution, sample_entry
from dflash.digests import DigestTable
from dflash.errors import InputInvalid
from dflash.measures import (
    Sight,
    Thinking,
    answer_digest,
    echoes_prompt,
    is_degenerate,
    is_empty,
    prompt_digest,
    thinking_of,
    units_of,
)
from dflash.tool_calls import calls_in, calls_of_messages, loops

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dflash.tokenizer import TargetTokenizer

EXAMPLES_KEPT = 5
SAMPLES_PLAIN = 12
SAMPLES_FLAGGED = 3
FLAGS = (
    "empty",
    "identical",
    "duplicate_prompt",
    "truncated",
    "unclosed",
    "orphan",
    "repetition",
    "prompt_echo",
    "split_leakage",
    "beyond_vocabulary",
    "special_inside",
    "mask_token",
    "bad_tool_call",
    "tool_loop",
    "template_mismatch",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was found in one row."""

    sight: Sight
    flags: tuple[str, ...]
    thinking: Thinking
    calls: int
    call_problems: tuple[str, ...]
    specials: tuple[int, ...]


class Eye:
    """Looks at one row after the other."""

    def __init__(
        self,
        tokenizer: TargetTokenizer | None,
        *,
        mask_token_id: int | None = None,
        vocabulary: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.mask = mask_token_id
        self.vocabulary = tokenizer.vocab_size if tokenizer else vocabulary
        self._answers, self._prompts = DigestTable(), DigestTable()
        self._splits: dict[str, int] = {}

    def look(self, sight: Sight) -> Seen:
        """Everything that is to be said of this row."""
        specials = self._specials_in(sight)
        calls = []
        if sight.completion is not None:
            calls = calls_in(sight.completion, sight.tools, truncated=sight.truncated)
        problems = tuple(call.problem for call in calls if call.problem)
        thinking = thinking_of(sight, self.tokenizer)
        flags = [*self._repeats(sight), *self._ids(sight)]
        flags += ["special_inside"] if specials else []
        flags += ["empty"] if is_empty(sight) else []
        flags += ["truncated"] if sight.truncated else []
        flags += ["repetition"] if is_degenerate(units_of(sight)) else []
        flags += ["prompt_echo"] if echoes_prompt(sight) else []
        flags += ["bad_tool_call"] if problems else []
        if sight.completion is not None:
            earlier = calls_of_messages(sight.messages or [])
            flags += ["tool_loop"] if loops([*earlier, *calls]) else []
        flags += ["template_mismatch"] if sight.other_prompt else []
        flags += [str(thinking)] if thinking in ("unclosed", "orphan") else []
        return Seen(
            sight=sight,
            flags=tuple(flags),
            thinking=thinking,
            calls=len(calls),
            call_problems=problems,
            specials=specials,
        )

    def _repeats(self, sight: Sight) -> Iterator[str]:
        if self._answers.add(answer_digest(sight)) is not None:
            yield "identical"
        split = self._splits.setdefault(sight.split, len(self._splits))
        first = self._prompts.add(prompt_digest(sight), split)
        if first is not None:
            yield "duplicate_prompt" if first == split else "split_leakage"

    def _ids(self, sight: Sight) -> Iterator[str]:
        ids = sight.completion_ids
        if self.vocabulary is not None and (len(ids) or len(sight.prompt_ids)):
            top = max(max(ids, default=0), max(sight.prompt_ids, default=0))
            if top >= self.vocabulary:
                yield "beyond_vocabulary"
        if self.mask is not None and (self.mask in ids or self.mask in sight.prompt_ids):
            yield "mask_token"

    def _specials_in(self, sight: Sight) -> tuple[int, ...]:
        """Special tokens before the last one that no model writes in its own turn."""
        if self.tokenizer is None or not len(sight.completion_ids):
            return ()
        unwanted = self.tokenizer.special_ids - self.tokenizer.markup_ids
        return tuple(number for number in sight.completion_ids[:-1] if number in unwanted)


class Tally:
    """Counts of what an eye found in some rows."""

    def __init__(self, eye: Eye) -> None:
        self.rows = 0
        self._eye = eye
        # By number of tokens, of which there are few: the order statistics stay exact.
        self._loss: Counter[int] = Counter()
        self._loss_cut: Counter[int] = Counter()
        self._lengths: Counter[int] = Counter()
        self._splits: Counter[str] = Counter()
        self._flags: Counter[str] = Counter()
        self._finish: Counter[str] = Counter()
        self._thinking: Counter[str] = Counter()
        self._finished = 0
        self._closed_finished = 0
        self._bare_finished = 0
        self._special: Counter[int] = Counter()
        self._examples: dict[str, list[str]] = {}
        self._kept: dict[str, list[dict[str, Any]]] = {}
        self._with_ids = 0
        self._rendered = 0
        self._calls = 0
        self._call_problems: Counter[str] = Counter()

    def add(self, seen: Seen) -> None:
        """One more row."""
        sight = seen.sight
        self.rows += 1
        self._loss[sight.loss_tokens] += 1
        self._loss_cut[sight.loss_tokens] += sight.truncated
        self._lengths[sight.length] += 1
        self._splits[sight.split] += 1
        self._finish[str(sight.finish_reason)] += 1
        self._with_ids += bool(len(sight.completion_ids))
        self._rendered += sight.other_prompt is not None
        self._calls += seen.calls
        self._call_problems.update(seen.call_problems)
        self._special.update(seen.specials)
        self._thinking[seen.thinking] += 1
        if not sight.truncated:
            self._finished += 1
            self._closed_finished += seen.thinking == Thinking.CLOSED
            self._bare_finished += seen.thinking == Thinking.BARE_CLOSE
        bare = ("bare_close",) if seen.thinking == Thinking.BARE_CLOSE else ()  # settled at the end
        for flag in (*seen.flags, *bare):
            self._flags[flag] += 1
            if len(self._examples.setdefault(flag, [])) < EXAMPLES_KEPT:
                self._examples[flag].append(sight.id)
        self._keep(seen)

    def _keep(self, seen: Seen) -> None:
        """A few rows per flag, and the first plain ones, for a person to read."""
        room = SAMPLES_FLAGGED if seen.flags else SAMPLES_PLAIN
        wanted = [flag for flag in seen.flags or ("plain",) if len(self._of(flag)) < room]
        if wanted:
            flags, tokenizer = list(seen.flags), self._eye.tokenizer
            entry = sample_entry(seen.sight, flags, str(seen.thinking), tokenizer)
            for flag in wanted:
                self._of(flag).append(entry)

    def _of(self, flag: str) -> list[dict[str, Any]]:
        return self._kept.setdefault(flag, [])

    def samples(self) -> list[dict[str, Any]]:
        """Each row once, plain ones first."""
        order = ["plain", *sorted(self._kept.keys() - {"plain"})]
        rows = [row for flag in order for row in self._kept.get(flag, [])]
        return list({(row["split"], row["id"]): row for row in rows}.values())

    def report(self, *, source: str) -> dict[str, Any]:
        if not self.rows:
            raise InputInvalid(f"{source} holds no row", "Let the step before it finish first.")
        thinking = self._settled_thinking()
        loss, length = distribution(self._loss), distribution(self._lengths)
        known = self._with_ids and length["total"]
        counted = self._counted()
        return {
            "format": "dflash-audit/1",
            "source": source,
            "rows": self.rows,
            "splits": {name: count for name, count in sorted(self._splits.items()) if name},
            "with_ids": self._with_ids,
            "loss_tokens": loss if counted else None,
            "length": length if counted else None,
            "loss_share": loss["total"] / length["total"] if known else None,
            "finish_reasons": dict(self._finish.most_common()),
            "shares": self._shares(thinking),
            "thinking": {
                "counts": thinking,
                "finished": self._finished,
                "closed_of_finished": self._closed_share(),
            },
            "tool_calls": {
                "count": self._calls,
                "problems": dict(self._call_problems.most_common(8)),
            },
            "special_ids": self._named_specials(),
            "mask_token_id": self._eye.mask,
            "examples": self._settled_examples(),
        }

    def _shares(self, thinking: dict[str, int]) -> dict[str, float | None]:
        eye = self._eye
        shares: dict[str, float | None] = {flag: self._flags[flag] / self.rows for flag in FLAGS}
        shares["same_length"] = self._same_length() if self._counted() else None
        shares["orphan"] = thinking["orphan"] / self.rows
        # Not looked for is not the same as not found.
        if eye.vocabulary is None or not self._with_ids:
            shares["beyond_vocabulary"] = None
        if eye.tokenizer is None or not self._with_ids:
            shares["special_inside"] = None
        if eye.mask is None or not self._with_ids:
            shares["mask_token"] = None
        if eye.tokenizer is None and self._with_ids and not self._calls:
            shares["bad_tool_call"] = shares["tool_loop"] = None
        shares["template_mismatch"] = (
            self._flags["template_mismatch"] / self._rendered if self._rendered else None
        )
        shares["mask_clash"] = self._clash()
        return shares

    def _counted(self) -> bool:
        """Whether any row tells how many tokens it has: by ids, or by the server's usage."""
        return max(self._loss) > 0

    def _same_length(self) -> float:
        """The most rows with one and the same number of loss tokens.

        Rows that the token limit cut have the limit's number, whatever is in them: `truncated`
        tells of those.
        """
        limit = max(self._loss)
        return (
            max(
                count - (self._loss_cut[number] if number == limit else 0)
                for number, count in self._loss.items()
            )
            / self.rows
        )

    def _opened_in_prompt(self) -> bool:
        """No row opens a thought and some close one: the template opened it (Qwen3.5 and on)."""
        opened = sum(self._thinking[kind] for kind in (Thinking.CLOSED, Thinking.UNCLOSED))
        return not opened and not self._thinking[Thinking.EMPTY]

    def _settled_thinking(self) -> dict[str, int]:
        counts = {str(kind): self._thinking[kind] for kind in Thinking}
        bare = counts.pop("bare_close")
        counts["closed" if self._opened_in_prompt() else "orphan"] += bare
        return counts

    def _settled_examples(self) -> dict[str, list[str]]:
        examples = dict(self._examples)
        bare = examples.pop("bare_close", [])
        if bare and not self._opened_in_prompt():
            examples["orphan"] = [*examples.get("orphan", []), *bare][:EXAMPLES_KEPT]
        return examples

    def _closed_share(self) -> float | None:
        if not self._finished:
            return None
        bare = self._bare_finished if self._opened_in_prompt() else 0
        return (self._closed_finished + bare) / self._finished

    def _clash(self) -> float | None:
        """1 when the mask token has another meaning for the target, 0 when not."""
        if self._eye.mask is None or self._eye.tokenizer is None:
            return None
        return float(self._eye.mask in self._eye.tokenizer.role_ids)

    def _named_specials(self) -> dict[str, int]:
        if self._eye.tokenizer is None:
            return {}
        names = {number: content for content, number in self._eye.tokenizer.added.items()}
        return {names[number]: count for number, count in self._special.most_common()}
