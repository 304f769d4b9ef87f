"""Paths and addresses among a step's arguments, judged before anything is started.

A relative path means one folder to the job and none to its checks: the work would be done, hours
later, and could not be proved.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic_core import core_schema

from runbook.bundle import bundle_files
from runbook.units import Shape

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler

BUNDLED = "bundled:"
PLUGINS = "plugins"
"""In place of a bundle: those that are source folders for pip."""
ABSOLUTE = "an absolute path, such as ${host.work}/NAME"

HostPath = Annotated[str, Shape(r"^(/|\$\{)", ABSOLUTE)]
"""A file or folder on the host."""
MaybePath = Annotated[str, Shape(r"^(/|\$\{|$)", ABSOLUTE)]
"""One that may be left empty."""
HttpUrl = Annotated[str, Shape(r"^(https?://[^/]|\$\{)", "an address, such as http://HOST:PORT")]
MaybeHttpUrl = Annotated[
    str, Shape(r"^(https?://[^/]|\$\{|$)", "an address, such as http://HOST:PORT")
]


@dataclass(frozen=True, slots=True)
class Known:
    """For `Annotated`: what comes with the package under `bundled:` must be there."""

    bundle: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(self._judged, handler(source))

    def _judged(self, value: str) -> str:
        name = value.removeprefix(BUNDLED)
        if not value.startswith(BUNDLED) or "${" in name:
            return value
        known = _names(self.bundle)
        if name not in known:
            meant = get_close_matches(name, known, n=1, cutoff=0.5) or known
            raise ValueError(f"{value!r} does not come with runbook; write {_either(meant)}")
        return value


@cache
def _names(bundle: str) -> tuple[str, ...]:
    return ("cpu_platform",) if bundle == PLUGINS else tuple(bundle_files(bundle))


def _either(names: tuple[str, ...] | list[str]) -> str:
    return " or ".join(f"{BUNDLED}{name}" for name in names)


def file_or(*others: str, bundle: str) -> tuple[Shape, Known]:
    """What `Annotated` needs for a file on the host, a bundled one, or one of `others`."""
    allowed = "|".join(("/", r"\$\{", BUNDLED, *others))
    return Shape(rf"^({allowed})", f"{ABSOLUTE}, or {BUNDLED}NAME"), Known(bundle)
