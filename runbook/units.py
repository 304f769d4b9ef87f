"""Durations and sizes as an operator writes them: `90s`, `10m`, `1h30m`, `512MiB`, `4GB`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import core_schema

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
LONGEST_S = 1e10
"""Three hundred years: what is longer is a slip."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")

_BYTES = {
    "B": 1,
    "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip
_SIZE = re.compile(rf"(\d+(?:\.\d+)?) ?({'|'.join(_BYTES)})")


@dataclass(frozen=True, slots=True)
class Shape:
    """Text of one pattern, for `Annotated`; a refusal has the words and not the pattern."""

    pattern: str
    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._judged, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.pattern}

    def _judged(self, value: str) -> str:
        if not re.search(self.pattern, value):
            raise ValueError(f"{value!r} is not {self.words}")
        return value


def parse_duration(value: object) -> float:
    """Seconds of `10m`, `1h30m`, or of a plain number of seconds."""
    seconds = _seconds(value)
    if not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"a duration cannot be {str(value)[:40]}")
    return float(seconds)


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    text = value.strip() if isinstance(value, str) else ""
    if _NUMBER.fullmatch(text):  # as it comes from a command line
        return float(text)
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{value!r} is not a duration: write 90s, 10m, 1h30m or seconds")
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(text))


def parse_bytes(value: object) -> int:
    """Bytes of `4GiB`, `500MB`, or of a plain whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"a size cannot be {value}")
        return value
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError(f"{value!r} is not a size: write 512MiB, 4GB or a number of bytes")
    return int(float(found.group(1)) * _BYTES[found.group(2)])


def show_bytes(count: int) -> str:
    """`1.5 GiB`: for messages."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "string", "pattern": f"^(?:{_DURATION.pattern}|{_NUMBER.pattern})$"},
            ]
        }
    ),
]
Size = Annotated[
    int,
    BeforeValidator(parse_bytes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": f"^{_SIZE.pattern}$"},
            ]
        }
    ),
]
