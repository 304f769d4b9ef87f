"""Gates of an audit as a step's argument: names and limits, checked when the file is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, Field

from dflash.errors import UsageError
from dflash.gates import parse_gates

if TYPE_CHECKING:
    from collections.abc import Mapping


def _checked(gates: dict[str, float | str]) -> dict[str, float | str]:
    """A wrong gate must not show after hours of generating."""
    try:
        parse_gates([word for word in gate_words(gates) if "${" not in word])
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    return gates


Gates = Annotated[
    dict[str, float | str],
    AfterValidator(_checked),
    Field(default_factory=dict, description="Limit by gate; `dflash audit --help`."),
]


def gate_words(gates: Mapping[str, float | str]) -> list[str]:
    """As `--gate` takes them."""
    return [
        f"{name}={value}" if isinstance(value, str) else f"{name}={value:.12g}"
        for name, value in gates.items()
    ]
