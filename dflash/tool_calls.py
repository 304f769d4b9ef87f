"""Tool calls in a model's raw text: which there are, and what is wrong with them. Pure.

Two forms are known: JSON in `<tool_call>` (Qwen2.5, Qwen3, Hermes) and, from Qwen3.5 on,
`<function=NAME>` with `<parameter=NAME>` blocks inside it.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

OPEN, CLOSE = "<tool_call>", "</tool_call>"
LOOP = 3  # the same call so many times in a row
BLOCK = re.compile(re.escape(OPEN) + r"(.*?)" + re.escape(CLOSE), re.DOTALL)
FUNCTION = re.compile(r"<function=([^>\n]+)>(.*)</function>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call; `problem` is empty when it can be executed as it stands."""

    name: str
    arguments: str
    problem: str = ""


def calls_in(
    text: str, tools: Sequence[Mapping[str, Any]] | None, *, truncated: bool = False
) -> list[Call]:
    """Calls of the answer, in order; what stands in the thought is not called.

    Args:
        tools: As offered to the model; None when that is not known.
        truncated: A call that the token limit cut is not the model's fault.
    """
    answer = text.rsplit("</think>", 1)[-1]
    offered = None if tools is None else {_name(tool): _parameters(tool) for tool in tools}
    found = [_checked(_parse(body.strip()), offered) for body in BLOCK.findall(answer)]
    if answer.count(OPEN) > len(found) and not truncated:
        found.append(Call(name="", arguments="", problem="a call is not closed"))
    return found


def loops(calls: Sequence[Call]) -> bool:
    """The same call with the same arguments again and again, one after the other."""
    keys = [(call.name, call.arguments) for call in calls]
    return any(len(set(keys[i : i + LOOP])) == 1 for i in range(len(keys) - LOOP + 1))


def calls_of_messages(messages: Sequence[Mapping[str, Any]]) -> list[Call]:
    """The calls of earlier assistant turns since the user last spoke."""
    last = max((i for i, m in enumerate(messages) if m.get("role") == "user"), default=-1)
    found = []
    for message in messages[last + 1 :]:
        for call in message.get("tool_calls") or ():
            function = call.get("function") or call
            arguments = function.get("arguments")
            if isinstance(arguments, str):
                try:
                    arguments = json.loads(arguments)
                except ValueError:
                    arguments = {"": arguments}
            found.append(Call(name=str(function.get("name")), arguments=_plain(arguments)))
    return found


def _parse(body: str) -> Call:
    if function := FUNCTION.fullmatch(body):
        arguments = dict(PARAMETER.findall(function[2]))
        return Call(name=function[1].strip(), arguments=_plain(arguments))
    try:
        value = json.loads(body)
    except ValueError:
        return Call(name="", arguments=body, problem="a call is no JSON")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Call(name="", arguments=body, problem="a call names no function")
    arguments = value.get("arguments", {})
    problem = "" if isinstance(arguments, dict) else "a call's arguments are no object"
    return Call(name=value["name"], arguments=_plain(arguments), problem=problem)


def _checked(call: Call, offered: Mapping[str, Mapping[str, Any]] | None) -> Call:
    if call.problem or offered is None:
        return call
    if call.name not in offered:
        problem = f"{call.name} was not offered"
    else:
        given = json.loads(call.arguments)
        missing = [key for key in offered[call.name].get("required") or () if key not in given]
        problem = f"{call.name} lacks {', '.join(missing)}" if missing else ""
    return Call(name=call.name, arguments=call.arguments, problem=problem)


def _name(tool: Mapping[str, Any]) -> str:
    return str((tool.get("function") or tool).get("name"))


def _parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    found = (tool.get("function") or tool).get("parameters")
    return found if isinstance(found, dict) else {}


def _plain(arguments: Any) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)
