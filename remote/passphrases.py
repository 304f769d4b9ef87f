"""How a person is asked for the passphrase of a key. Nobody is, until a front says how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pathlib import Path


class Ask(Protocol):
    def __call__(self, path: Path, again: bool) -> str | None:
        """The passphrase of a key file; None when the person gives none.

        Called from the thread that connects, one call at a time. `again`: the last one was wrong.
        """
        ...


class Person:
    """Whom the connections of this process ask."""

    turn = 0
    """Grows when the person may be asked again about keys that they gave up on."""

    def __init__(self) -> None:
        self.ask: Ask | None = None


PERSON = Person()


def ask_by(ask: Ask | None) -> None:
    """From now on, passphrases are asked this way; by nobody, if None."""
    PERSON.ask = ask


def ask_anew() -> None:
    """A person did something: keys that they gave up on before may be asked about again."""
    PERSON.turn += 1
