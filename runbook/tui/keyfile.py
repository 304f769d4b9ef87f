"""A person's own keys: a small TOML file laid over the table of `keymap`.

`$RUNBOOK_KEYS`, else `$XDG_CONFIG_HOME/runbook/keys.toml` (by default under `~/.config`):

    [keys]
    run = "r,f5"
    stop = "ctrl+x"
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.binding import Binding
from textual.keys import Keys, format_key

from runbook.errors import RunbookError
from runbook.tui.keymap import BY_ID, KEYS, Key, clashes

if TYPE_CHECKING:
    from collections.abc import Mapping

MODIFIERS = frozenset({"ctrl", "shift", "alt", "super", "hyper", "meta"})


@dataclass(frozen=True, slots=True)
class KeyTable:
    """The keys in force."""

    keys: tuple[Key, ...] = KEYS
    changed: Mapping[str, str] | None = None
    """Id to keys, as Textual takes them; only what differs from the table."""

    def of(self, name: str) -> Key:
        """A row by its id."""
        return next((key for key in self.keys if key.id == name), BY_ID[name])


def keys_file(environment: Mapping[str, str]) -> Path:
    """Where a person's keys would be."""
    named = environment.get("RUNBOOK_KEYS")
    if named:
        return Path(named)
    config = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "runbook" / "keys.toml"


def load_keys(path: Path, *, required: bool = False) -> KeyTable:
    """The table with a person's keys laid over it.

    Args:
        required: whether it was asked for by name; else a missing file means no wish.

    Raises:
        RunbookError: the file is missing, no TOML, or names what does not exist; all at once.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not required:
            return KeyTable()
        raise RunbookError(
            f"No key file at {path}.", hint="Correct $RUNBOOK_KEYS, or unset it."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise RunbookError(
            f"The key file {path} cannot be read: {error}.",
            hint="Make it a readable text file, or move it away.",
        ) from error
    try:
        wishes = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RunbookError(
            f"{path}: {error}.", hint='It holds lines such as run = "r,f5" below [keys].'
        ) from error
    return _apply(wishes, path)


def _apply(wishes: Mapping[str, Any], path: Path) -> KeyTable:
    problems = [f"there is no table [{name}], only [keys]" for name in wishes if name != "keys"]
    wanted = wishes.get("keys", {})
    if not isinstance(wanted, dict):
        problems, wanted = [*problems, "`keys` is a table: write [keys]"], {}
    changed = {}
    for name, value in wanted.items():
        said = _problem(name, value)
        if said:
            problems.append(said)
        else:
            changed[name] = ",".join(_named(key) for key in value.split(","))
    table = tuple(_moved(key, changed.get(key.id)) for key in KEYS)
    problems += [
        f"`{name}` would do two things: {', '.join(k.id for k in table if name in k.names)}"
        for name in (clashes(table) if not problems else ())
    ]
    if problems:
        raise RunbookError(
            f"The key file {path} cannot be used:\n  " + "\n  ".join(problems),
            hint="`runbook tui --keys` lists the names and their keys.",
        )
    return KeyTable(keys=table, changed=changed)


def _problem(name: str, value: object) -> str:
    if name not in BY_ID:
        near = get_close_matches(name, BY_ID, 1)
        return f"nothing is called `{name}`" + (f"; did you mean `{near[0]}`?" if near else "")
    if not isinstance(value, str) or not all(part.strip() for part in value.split(",")):
        return f'`{name}` wants keys as text, such as "r,f5"; found {value!r}'
    wrong = [part.strip() for part in value.split(",") if not _is_key(part.strip())]
    return f"`{name}`: `{wrong[0]}` is not a key" if wrong else ""


def _is_key(name: str) -> bool:
    *modifiers, last = name.split("+") if len(name) > 1 else [name]
    known = len(last) == 1 or last in {str(key.value) for key in Keys} or _is_character(last)
    return known and set(modifiers) <= MODIFIERS


def _is_character(name: str) -> bool:
    return len(format_key(name)) == 1


def _named(key: str) -> str:
    """`?` as Textual names it, `question_mark`."""
    return next(iter(Binding.make_bindings([Binding(key.strip(), "x")]))).key


def _moved(key: Key, keys: str | None) -> Key:
    if keys is None:
        return key
    shown = format_key(keys.split(",")[0]).replace("ctrl+", "^")
    return replace(key, keys=keys, shown=shown)
