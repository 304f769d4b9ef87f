"""Gates: a limit on one number of an audit, and one sentence when it does not hold. Pure."""

from __future__ import annotations

import difflib
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dflash.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Which number a gate looks at; `flag` names the flagged rows it can show as examples."""

    metric: str
    kind: Literal["min", "max"]
    share: bool
    words: str
    flag: str | None = None


RULES: Mapping[str, Rule] = {
    "min_rows": Rule(metric="rows", kind="min", share=False, words="rows"),
    "min_heldout_rows": Rule(
        metric="splits.heldout", kind="min", share=False, words="rows in heldout"
    ),
    "min_mean_loss_tokens": Rule(
        metric="loss_tokens.mean", kind="min", share=False, words="loss tokens a row on average"
    ),
    "max_mean_loss_tokens": Rule(
        metric="loss_tokens.mean", kind="max", share=False, words="loss tokens a row on average"
    ),
    "min_loss_share": Rule(
        metric="loss_share", kind="min", share=True, words="of the tokens are trained on"
    ),
    "max_length": Rule(metric="length.max", kind="max", share=False, words="tokens at most a row"),
    "max_mode_share": Rule(
        metric="shares.same_length",
        kind="max",
        share=True,
        words="of the rows have one and the same number of loss tokens",
    ),
    "max_empty": Rule(
        metric="shares.empty", kind="max", share=True, words="of the rows are empty", flag="empty"
    ),
    "max_identical": Rule(
        metric="shares.identical",
        kind="max",
        share=True,
        words="of the rows repeat another row's answer",
        flag="identical",
    ),
    "max_duplicate_prompts": Rule(
        metric="shares.duplicate_prompt",
        kind="max",
        share=True,
        words="of the rows repeat another row's prompt",
        flag="duplicate_prompt",
    ),
    "max_truncated": Rule(
        metric="shares.truncated",
        kind="max",
        share=True,
        words="of the rows are cut off by the token limit",
        flag="truncated",
    ),
    "max_unclosed": Rule(
        metric="shares.unclosed",
        kind="max",
        share=True,
        words="of the rows never close their thought",
        flag="unclosed",
    ),
    "max_orphan": Rule(
        metric="shares.orphan",
        kind="max",
        share=True,
        words="of the rows close a thought that was never opened",
        flag="orphan",
    ),
    "max_repetition": Rule(
        metric="shares.repetition",
        kind="max",
        share=True,
        words="of the rows run into a loop",
        flag="repetition",
    ),
    "max_prompt_echo": Rule(
        metric="shares.prompt_echo",
        kind="max",
        share=True,
        words="of the rows repeat their whole prompt",
        flag="prompt_echo",
    ),
    "max_split_leakage": Rule(
        metric="shares.split_leakage",
        kind="max",
        share=True,
        words="of the rows have a prompt that is in another split too",
        flag="split_leakage",
    ),
    "max_beyond_vocabulary": Rule(
        metric="shares.beyond_vocabulary",
        kind="max",
        share=True,
        words="of the rows have token ids beyond the vocabulary",
        flag="beyond_vocabulary",
    ),
    "max_special_inside": Rule(
        metric="shares.special_inside",
        kind="max",
        share=True,
        words="of the rows have special tokens inside what was generated",
        flag="special_inside",
    ),
    "max_mask_token": Rule(
        metric="shares.mask_token",
        kind="max",
        share=True,
        words="of the rows contain the drafter's mask token",
        flag="mask_token",
    ),
    "max_bad_tool_call": Rule(
        metric="shares.bad_tool_call",
        kind="max",
        share=True,
        words="of the rows have a tool call that cannot be executed",
        flag="bad_tool_call",
    ),
    "max_tool_loop": Rule(
        metric="shares.tool_loop",
        kind="max",
        share=True,
        words="of the rows make one and the same tool call again and again",
        flag="tool_loop",
    ),
    "max_template_mismatch": Rule(
        metric="shares.template_mismatch",
        kind="max",
        share=True,
        words="of the rows have a prompt that the chat template renders otherwise",
        flag="template_mismatch",
    ),
    "max_mask_clash": Rule(
        metric="shares.mask_clash",
        kind="max",
        share=True,
        words="certain that the mask token begins, ends or pads a text",
    ),
}
# What no set may have, whatever is asked for.
ALWAYS = {
    "min_rows": "1",
    "max_beyond_vocabulary": "0",
    "max_mask_token": "0",
    "max_mask_clash": "0",
}
THINKING = ("required", "off", "any")
# What no run of `dflash generate` should be like, unless it is asked for.
EARLY = {
    "max_empty": "0.1",
    "max_identical": "0.5",
    "max_mode_share": "0.5",
    "max_truncated": "0.5",
    "max_repetition": "0.5",
    "max_tool_loop": "0.1",
}
EARLY_THINKING = "0.9"


def gates_help() -> str:
    """What `--help` says of them."""
    numbers = [name for name, rule in RULES.items() if not rule.share]
    shares = [name for name, rule in RULES.items() if rule.share]
    text = (
        f"gates: any of {', '.join(numbers)}, and as shares of rows {', '.join(shares)}; "
        "thinking=required|off|any|SHARE"
    )
    return textwrap.fill(text, 98, subsequent_indent="  ", break_on_hyphens=False)


def parse_gates(words: Sequence[str]) -> dict[str, float | str]:
    """`NAME=VALUE` words over the gates that always hold."""
    gates: dict[str, float | str] = {}
    for word in [*(f"{name}={value}" for name, value in ALWAYS.items()), *words]:
        name, found, value = word.partition("=")
        if name == "thinking" and value in THINKING:
            gates[name] = value
            continue
        if name not in RULES and name != "thinking":
            raise UsageError(f"there is no gate {name!r}", _suggestion(name))
        try:
            gates[name] = float(value)
        except ValueError:
            raise UsageError(
                f"--gate {word}: {value!r} is no number"
                if found
                else f"--gate {word} has no value",
                f"Write it as {name}=0.1."
                if name != "thinking"
                else "Write thinking=required, off, any, or the smallest share.",
            ) from None
    return gates


def early_gates(words: Sequence[str], *, thinking: str) -> dict[str, float | str]:
    """The limits that `dflash generate` holds its rows to: those given, and the usual ones."""
    usual = {**EARLY, **({"thinking": EARLY_THINKING} if thinking == "on" else {})}
    return parse_gates([*(f"{name}={limit}" for name, limit in usual.items()), *words])


def judge(gates: Mapping[str, float | str], report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every gate with its verdict; `sentence` says what was found against what is allowed.

    A gate that always holds is left out where the input cannot tell; one asked for fails there.
    """
    asked = {
        name: limit
        for name, limit in gates.items()
        if name not in ALWAYS
        or limit != float(ALWAYS[name])
        or _look_up(report, RULES[name].metric) is not None
    }
    return [
        _judge_thinking(limit, report)
        if name == "thinking"
        else _judge_rule(name, RULES[name], float(limit), report)
        for name, limit in asked.items()
    ]


def shortly(gate: Mapping[str, Any]) -> str:
    """One verdict in a few words: `max_empty 90% (10%)`."""
    name, found, limit = gate["gate"], gate["found"], gate["limit"]
    share = name == "thinking" or RULES[name].share
    show = _percent if share else _number
    bound = show(limit) if isinstance(limit, float) else limit
    # With thinking=off it is a number of rows that was found.
    seen = "none" if found is None else str(found) if limit == "off" else show(found)
    return f"{name} {seen} ({bound})"


def _judge_rule(name: str, rule: Rule, limit: float, report: Mapping[str, Any]) -> dict[str, Any]:
    found = _look_up(report, rule.metric)
    if found is None:
        passed, sentence = False, f"{name}: this input does not tell ({rule.metric} is unknown)"
    else:
        passed = found >= limit if rule.kind == "min" else found <= limit
        bound = "at least" if rule.kind == "min" else "at most"
        show = _percent if rule.share else _number
        allowed = "none allowed" if rule.share and not limit else f"{bound} {show(limit)} allowed"
        sentence = f"{name}: {show(found)} {rule.words}, {allowed}"
        examples = report["examples"].get(rule.flag, []) if rule.flag and not passed else []
        if examples:
            sentence += f" (for one, {', '.join(examples[:3])})"
    return {"gate": name, "limit": limit, "found": found, "passed": passed, "sentence": sentence}


def _judge_thinking(limit: float | str, report: Mapping[str, Any]) -> dict[str, Any]:
    thinking = report["thinking"]
    closed = thinking["closed_of_finished"]
    if limit == "any":
        passed, found, sentence = True, closed, "thinking: not judged"
    elif limit == "off":
        found = thinking["counts"]["closed"] + thinking["counts"]["unclosed"]
        passed = found == 0
        sentence = f"thinking: {found} rows think, none should"
    else:
        wanted = 1.0 if limit == "required" else float(limit)
        found, passed = closed, closed is not None and closed >= wanted
        shown = "no row finished" if closed is None else f"{_percent(closed)} of the finished rows"
        sentence = f"thinking: {shown} have a thought that is closed, {_percent(wanted)} required"
    return {
        "gate": "thinking",
        "limit": limit,
        "found": found,
        "passed": passed,
        "sentence": sentence,
    }


def _look_up(report: Mapping[str, Any], path: str) -> float | None:
    value: Any = report
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return None if value is None else float(value)


def _suggestion(name: str) -> str:
    near = difflib.get_close_matches(name, [*RULES, "thinking"], n=1)
    known = ", ".join([*RULES, "thinking"])
    return f"Did you mean {near[0]}?" if near else f"Known gates: {known}."


def _percent(value: float) -> str:
    # Never "0%" for something that is there.
    return f"{value * 100:.3g}%" if value else "0%"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"
