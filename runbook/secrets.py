"""Secrets: taken from the operator's machine when a task starts, handed over, and kept nowhere.

Whatever a host says afterwards passes the `Redactor` before anything of ours sees it. It knows only
what was handed out from here. A secret that cannot be had on this machine is not guarded by value:
then the output of the attempts that got it is not copied at all.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remote.supervisor.hiding import SHORTEST, begun, forms
from runbook.errors import CannotStart

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from state import Attempt, Snapshot

COMMAND_S = 60.0
LARGEST = 1 << 16
KNOWN_SHAPES = re.compile(
    r"(?P<keep>(?i:authorization:\s*\w+\s+))\S{6,}"
    r"|(?P<user>://[^/\s:@]{1,64}:)[^/\s@]+(?=@)"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bhf_[A-Za-z0-9]{20,}\b|\bgh[pousr]_[A-Za-z0-9]{30,}\b"
)
"""A second net in texts that are recorded: what looks like a credential, whoever's it is."""


def resolve(name: str, source: Mapping[str, Any], folder: Path) -> str:
    """The value, from where the runbook file says. Raises CannotStart; never tells the value."""
    kind = source["from"]
    if kind == "env":
        value = os.environ.get(source.get("name") or name)
        where = f"the environment variable {source.get('name') or name}"
        hint = "Set it where `runbook` is started."
    elif kind == "file":
        path = folder / Path(source["path"]).expanduser()
        value, where, hint = _read(path), str(path), "Put it there, readable by you alone."
    else:
        value, where = _run(name, source["argv"], folder), f"the command {source['argv'][0]}"
        hint = "Run it by hand: it must print the value and end with 0."
    if value is None:
        raise CannotStart(f"The secret {name} cannot be had from {where}.", hint=hint)
    value = value.removesuffix("\n").removesuffix("\r")
    if "\0" in value or len(value) > LARGEST:
        raise CannotStart(f"The secret {name} from {where} is no text of a secret.", hint=hint)
    if len(value) < SHORTEST:
        raise CannotStart(
            f"The secret {name} from {where} has {len(value)} characters: too short to be hidden "
            "in logs, so it is not handed out.",
            hint=f"Use one of at least {SHORTEST}, or an ordinary `env` if it is no secret.",
        )
    return value


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _run(name: str, argv: Iterable[str], folder: Path) -> str | None:
    """Its error stream goes to the person: a password manager may ask there."""
    try:
        done = subprocess.run(
            list(argv), cwd=folder, stdout=subprocess.PIPE, timeout=COMMAND_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotStart(
            f"The command for the secret {name} failed: {type(error).__name__}.",
            hint="Run it by hand: it must print the value and end with 0.",
        ) from None
    try:
        return done.stdout.decode() if done.returncode == 0 else None
    except UnicodeDecodeError:
        return None


def fingerprint(value: str, *, like: str | None = None) -> str:
    """Tells whether a value is the same as before. Slow and salted: it cannot be guessed back."""
    salt = bytes.fromhex(like.partition("$")[0]) if like else os.urandom(16)
    return f"{salt.hex()}${_slow(value, salt).hex()}"


@lru_cache(maxsize=64)  # a value is taken for each task that lists it
def _slow(value: str, salt: bytes) -> bytes:
    return hashlib.scrypt(value.encode(), salt=salt, n=1 << 14, r=8, p=1, dklen=16)


@dataclass(slots=True)
class Redactor:
    """Hides known values in texts, and in bytes without changing their length."""

    _forms: dict[str, str] = field(default_factory=dict)
    """Form -> name of its secret."""
    _text: re.Pattern[str] | None = None
    _bytes: re.Pattern[bytes] | None = None

    def add(self, name: str, value: str) -> None:
        """From now on this value is hidden."""
        # Replaced, not changed: another thread may be at work with the old one.
        self._forms = {**self._forms, **dict.fromkeys(forms(value), name)}
        ordered = sorted(self._forms, key=len, reverse=True)  # the longest that fits wins
        self._text = re.compile("|".join(map(re.escape, ordered)))
        self._bytes = re.compile(b"|".join(re.escape(form.encode()) for form in ordered))

    def text(self, text: str) -> str:
        """The text with names in place of values."""
        if self._text is not None:
            text = self._text.sub(lambda found: f"[{self._forms[found[0]]}]", text)
        return KNOWN_SHAPES.sub(
            lambda found: f"{found['keep'] or found['user'] or ''}[hidden]", text
        )

    def value(self, value: Any) -> Any:
        """A JSON value with every text in it made safe, keys included."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(key)): self.value(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value

    def stream(self, data: bytes, *, final: bool, after_gap: bool = False) -> bytes:
        """The next bytes of a log, as long as they were: the size of a copy is its cursor.

        The end that may be the beginning of a value is held back until more of it is there; of a
        log that has ended, it is hidden. So is the end of a value whose beginning is in a gap.
        """
        if self._bytes is None:
            return data
        hidden = self._bytes.sub(lambda found: b"*" * len(found[0]), data)
        if after_gap:
            ended = self._ended(hidden)
            hidden = b"*" * ended + hidden[ended:]
        left = begun(hidden, [form.encode() for form in self._forms])
        if not left:
            return hidden
        kept = hidden[: len(hidden) - left]
        if not final:
            return kept
        return kept + (b"*" * left if left >= SHORTEST else hidden[len(kept) :])

    def _ended(self, data: bytes) -> int:
        """How many bytes at the start are the end of a value that began before them."""
        ends = (form.encode() for form in self._forms)
        cut = (end[at:] for end in ends for at in range(1, len(end) - SHORTEST + 1))
        return max((len(rest) for rest in cut if data.startswith(rest)), default=0)


KNOWN = Redactor()
"""One for the process: what was taken once must not be told by any part of it, a crash included."""


@dataclass(slots=True)
class SecretBox:
    """The secrets that a client of a workspace has had to do with."""

    folder: Path = field(default_factory=Path)
    """Where relative paths of sources begin: the workspace."""
    redactor: Redactor = field(default_factory=lambda: KNOWN)
    _values: dict[str, str] = field(default_factory=dict)
    _missing: dict[str, CannotStart] = field(default_factory=dict)
    _handed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Attempt -> names of what it got."""

    def take(self, snapshot: Snapshot, names: Iterable[str]) -> dict[str, str]:
        """The values of these secrets, which are hidden from now on. Raises CannotStart."""
        sources = {secret.name: secret.source for secret in snapshot.secrets}
        taken = {}
        for name in names:
            if name not in sources:
                raise CannotStart(
                    f"The runbook declares no secret {name}.",
                    hint="See `secrets:` in runbook.yaml.",
                )
            if name not in self._values:
                self._values[name] = resolve(name, sources[name], self.folder)
                self.redactor.add(name, self._values[name])
                self._missing.pop(name, None)
            taken[name] = self._values[name]
        return taken

    def guard(self, snapshot: Snapshot) -> None:
        """Before a host speaks: know all that was ever handed out and can be had here."""
        names = {secret.name for secret in snapshot.secrets if secret.fingerprint}
        if names:
            self._handed = {attempt.id: secrets_of(attempt) for attempt in snapshot.attempts}
        for name in names - self._values.keys() - self._missing.keys():
            try:
                self.take(snapshot, [name])
            except CannotStart as error:
                self._missing[name] = error

    def is_guarded(self, attempt: str) -> bool:
        """Whether all that this attempt got is known here, and so is hidden."""
        return all(name in self._values for name in self._handed.get(attempt, ()))


def secrets_of(attempt: Attempt) -> tuple[str, ...]:
    """The names of what an attempt gets."""
    job = attempt.detail.get("job") or {}
    return tuple(job.get("secrets") or ())
