"""The prompt file: JSON lines of `{"id", "messages", "tools"?, "meta"?}`, checked before any use.

The whole file is read first: one bad line stops the run before a request is sent, so that a run
after the line is mended finds nothing half done. Kept of it are ids, places and digests; a prompt
is read again when its turn comes, so a million of them fit into memory.

What an assistant said earlier in a conversation is the file's, not the target's. `turns` says what
becomes of it:

    keep         it stays, as context
    strip        assistants' and tools' messages go; what the users say is answered once, at the end
    regenerate   the target says each assistant turn anew, in order, with its own answers before
                 it; turn N of conversation ID is the record ID#N
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from dflash.errors import InputInvalid
from dflash.files import jsonl_lines, parse_line

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterator, Mapping
    from pathlib import Path

ROLES = ("system", "developer", "user", "assistant", "tool")
Turns = Literal["keep", "strip", "regenerate"]
TURNS: tuple[Turns, ...] = ("keep", "strip", "regenerate")
TURN_ID = re.compile(r"#\d+$")
WHAT = "prompt file"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One conversation to be continued by the target."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    meta: dict[str, Any] | None = None
    digest: int = 0
    """What the model is asked, so that a changed prompt under an old id is noticed."""
    rest: tuple[list[dict[str, Any]], ...] = ()
    """With `regenerate`: what is said before each later turn."""

    def following(self, content: str) -> Prompt | None:
        """The next turn of the conversation, once this one is answered."""
        if not self.rest:
            return None
        name, _, turn = self.id.rpartition("#")
        said = {"role": "assistant", "content": content.strip("\n")}
        return replace(
            self,
            id=f"{name}#{int(turn) + 1}",
            messages=[*self.messages, said, *self.rest[0]],
            rest=self.rest[1:],
        )


def digest_of(messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> int:
    text = json.dumps([messages, tools], sort_keys=True, ensure_ascii=False)
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big")


class PromptFile:
    """Every prompt of a file in its order; `len` counts the answers that it asks for."""

    def __init__(
        self,
        path: Path,
        *,
        turns: Turns = "keep",
        system: str | None = None,
        limit: int | None = None,
    ) -> None:
        self.path = path
        self.turns = turns
        self.dropped_turns = 0
        """With `regenerate`: turns behind a tool's answer, which no new call would have got."""
        self._system = system
        self._ids: list[str] = []
        self._offsets, self._digests = array("q"), array("Q")
        self._answers = array("I")
        self._index(limit)

    def __len__(self) -> int:
        return sum(self._answers)

    def changed(self, done: Mapping[str, int]) -> list[str]:
        """Ids that were answered when they stood for another prompt."""
        return [
            request
            for name, digest, count in zip(self._ids, self._digests, self._answers, strict=True)
            for request in self._requests(name, count)
            if done.get(request, digest) != digest
        ]

    def left(self, done: Mapping[str, int], held: Container[str]) -> tuple[int, int]:
        """How many answers are missing, and of those, how many cannot be asked for.

        Args:
            held: Not to be asked; nor are later turns of the same conversation.
        """
        missing = stuck = 0
        for name, count in zip(self._ids, self._answers, strict=True):
            open_ = [request for request in self._requests(name, count) if request not in done]
            if any(request in held for request in open_):
                stuck += len(open_)
            else:
                missing += len(open_)
        return missing, stuck

    def digests(self, names: Collection[str]) -> dict[str, int]:
        """Of these answers, the digests of those that the file asks for."""
        wanted = set(names)
        return {
            request: digest
            for name, digest, count in zip(self._ids, self._digests, self._answers, strict=True)
            for request in self._requests(name, count)
            if request in wanted
        }

    def begun(self, done: Mapping[str, int]) -> set[str]:
        """Records of conversations that were stopped between two of their turns."""
        found: set[str] = set()
        for name, count in zip(self._ids, self._answers, strict=True):
            if count > 1:
                there = [one for one in self._requests(name, count) if one in done]
                found.update(there if len(there) < count else ())
        return found

    def pending(
        self,
        done: Mapping[str, int],
        held: Container[str] = (),
        said: Mapping[str, str] | None = None,
    ) -> Iterator[Prompt]:
        """Those without an answer, read from the file as they are asked for.

        Args:
            said: The contents of the records that `begun` names.
        """
        with self.path.open("rb") as handle:
            places = zip(self._ids, self._offsets, self._answers, self._digests, strict=True)
            for name, offset, count, digest in places:
                requests = list(self._requests(name, count))
                if all(request in done for request in requests):
                    continue
                if any(request in held for request in requests):
                    continue
                handle.seek(offset)
                prompt: Prompt | None = self._prompt(json.loads(handle.readline()), digest)
                while prompt is not None and prompt.id in done:
                    prompt = prompt.following((said or {})[prompt.id])
                if prompt is not None:
                    yield prompt

    def _requests(self, name: str, count: int) -> Iterator[str]:
        if self.turns != "regenerate":
            yield name
            return
        yield from (f"{name}#{number}" for number in range(1, count + 1))

    def _index(self, limit: int | None) -> None:
        lines: dict[str, int] = {}
        for number, offset, line in jsonl_lines_at(self.path):
            value = parse_line(line, self.path, number, WHAT)
            name = self._checked(value, number)
            if name in lines:
                raise _invalid(self.path, number, f"the id {name!r} that line {lines[name]} has")
            lines[name] = number
            if limit is not None and len(self._ids) >= limit:
                continue  # the lines behind are checked all the same
            parts, dropped = self._parts(value)
            if not parts:
                raise _invalid(self.path, number, "an assistant's message at the end, nothing to "
                               "answer (--turns regenerate says it anew)")  # fmt: skip
            self.dropped_turns += dropped
            self._ids.append(name)
            self._offsets.append(offset)
            self._digests.append(_digest(parts, value))
            self._answers.append(len(parts))
        if not self._ids:
            raise InputInvalid(f"{self.path} holds no prompt", "Write one JSON object a line.")

    def _checked(self, value: dict[str, Any], number: int) -> str:
        name = value.get("id")
        if not isinstance(name, str) or not name:
            found = "no id" if name in (None, "") else f"an id of {name!r}, which is no text"
            raise _invalid(self.path, number, found)
        if self.turns == "regenerate" and TURN_ID.search(name):
            raise _invalid(self.path, number, f"an id {name!r} that looks like one turn's")
        messages = value.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _invalid(self.path, number, "no list of messages")
        for message in messages:
            _check_message(message, self.path, number)
        if not isinstance(value.get("tools") or [], list):
            raise _invalid(self.path, number, "tools that are no list")
        return name

    def _parts(self, value: dict[str, Any]) -> tuple[list[list[dict[str, Any]]], int]:
        """What is said before each answer that is asked for, and how many turns are left out."""
        messages = value["messages"]
        if self._system is not None and messages[0]["role"] != "system":
            messages = [{"role": "system", "content": self._system}, *messages]
        if self.turns == "strip":
            messages = [m for m in messages if m["role"] not in ("assistant", "tool")]
        if self.turns == "regenerate":
            return _turns_of(messages)
        return ([messages] if messages and messages[-1]["role"] != "assistant" else []), 0

    def _prompt(self, value: dict[str, Any], digest: int) -> Prompt:
        parts, _ = self._parts(value)
        return Prompt(
            id=next(self._requests(value["id"], 1)),
            messages=parts[0],
            tools=value.get("tools") or None,
            meta=value.get("meta"),
            digest=digest,
            rest=tuple(parts[1:]),
        )


def load_prompts(
    path: Path, *, limit: int | None = None, system: str | None = None
) -> list[Prompt]:
    """All at once, for files that are known to be small."""
    return list(PromptFile(path, limit=limit, system=system).pending({}))


def _turns_of(messages: list[dict[str, Any]]) -> tuple[list[list[dict[str, Any]]], int]:
    """Cut at the assistant's messages; up to the first tool's answer that follows one."""
    parts: list[list[dict[str, Any]]] = [[]]
    for message in messages:
        if message["role"] == "assistant":
            parts.append([])
        else:
            parts[-1].append(message)
    if not parts[-1]:
        parts.pop()
    whole = 0
    while whole < len(parts) and parts[whole] and parts[whole][0]["role"] != "tool":
        whole += 1
    return parts[:whole], len(parts) - whole


def _digest(parts: list[list[dict[str, Any]]], value: dict[str, Any]) -> int:
    tools = value.get("tools") or None
    if len(parts) == 1:
        return digest_of(parts[0], tools)
    return digest_of([{"said": part} for part in parts], tools)


def jsonl_lines_at(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, place and bytes of every line that is not blank."""
    offset = 0
    for number, line in jsonl_lines(path, WHAT, blank=True):
        if line.strip():
            yield number, offset, line
        offset += len(line)


def _check_message(message: Any, path: Path, number: int) -> None:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        found = message.get("role") if isinstance(message, dict) else message
        raise _invalid(path, number, f"a message with role {found!r}")
    # A template that meets null or a list of parts drops it without a word.
    if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
        raise _invalid(path, number, f"a {message['role']} message whose content is no text")


def _invalid(path: Path, number: int, found: str) -> InputInvalid:
    return InputInvalid(
        f"{path}:{number}: found {found}",
        f"Mend or remove line {number} and run the same command again.",
    )
