"""The vocabulary of checks: names, arguments, and short builders for the steps' own defaults.

The host runs them (`remote/supervisor/checks.py`); here they are only spelled and validated.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from runbook.units import Seconds, Shape, Size

Port = Annotated[int, Field(ge=1, le=65535)]
CheckedPath = Annotated[str, Shape(r"^(/|~|\$\{)", "an absolute path, such as ${host.work}/NAME")]
JsonScalar = str | int | float | bool | None


class CheckArgs(BaseModel):
    """Arguments of one check."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class FileCheck(CheckArgs):
    """The file exists, and is not smaller than said."""

    path: CheckedPath
    min_bytes: Size | None = None


class Sha256Check(CheckArgs):
    """The file has this digest."""

    path: CheckedPath
    hex: Annotated[str, Shape(r"^[0-9a-fA-F]{64}$|\$\{", "a SHA-256 of 64 hexadecimal digits")]


class ManifestCheck(CheckArgs):
    """Every file of a manifest.json is there with its size and, unless quick, its digest."""

    path: CheckedPath
    quick: bool = False


class CommandCheck(CheckArgs):
    """The command ends with exit code 0 and, where given, prints the text."""

    argv: Annotated[tuple[str, ...], Field(min_length=1)]
    timeout_s: Seconds | None = None
    expect: str | None = None


class PortCheck(CheckArgs):
    """Something listens on the port."""

    port: Port
    host: str | None = None
    timeout_s: Seconds | None = None


class PortFreeCheck(CheckArgs):
    """Nothing listens on the port."""

    port: Port


class GpuFreeCheck(CheckArgs):
    """No more than a little memory of these GPUs is in use, by whomever; 1 GiB unless said."""

    gpus: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
    max_bytes: Size | None = None


class HttpCheck(CheckArgs):
    """The URL answers with the status and, where given, contains the text."""

    url: str
    status: int = 200
    contains: str | None = None
    timeout_s: Seconds | None = None


class HttpGenerateCheck(CheckArgs):
    """One tiny generation succeeds."""

    url: str
    model: str
    api: Literal["sglang", "openai"]
    timeout_s: Seconds | None = None


class HttpIdentityCheck(CheckArgs):
    """A field of a JSON answer has this value: it is our server and not yesterday's."""

    url: str
    field: str
    equals: JsonScalar
    timeout_s: Seconds | None = None


class JsonMetricCheck(CheckArgs):
    """A number (or value) in a JSON file keeps its bounds."""

    path: CheckedPath
    key: str
    min: float | None = None
    max: float | None = None
    above: float | None = None
    below: float | None = None
    equals: JsonScalar = None

    @model_validator(mode="after")
    def has_a_bound(self) -> JsonMetricCheck:
        """A metric without a bound would pass whatever is measured."""
        if not self.model_fields_set & {"min", "max", "above", "below", "equals"}:
            raise ValueError("give at least one of min, max, above, below, equals")
        return self


class RowsCheck(CheckArgs):
    """JSON-lines files hold at least so many rows together."""

    glob: CheckedPath
    rows: Annotated[int, Field(ge=0)]


class ImportsCheck(CheckArgs):
    """That Python imports the modules."""

    python: CheckedPath
    modules: Annotated[tuple[str, ...], Field(min_length=1)]
    under_s: Seconds | None = None
    env: dict[str, str] | None = None


class FreeSpaceCheck(CheckArgs):
    """The file system of the path has so much room."""

    path: CheckedPath
    bytes: Size


class ProcessAliveCheck(CheckArgs):
    """The attempt's process lives."""


CHECKS: dict[str, type[CheckArgs]] = {
    "command": CommandCheck,
    "file": FileCheck,
    "free_space": FreeSpaceCheck,
    "gpu_free": GpuFreeCheck,
    "http": HttpCheck,
    "http_generate": HttpGenerateCheck,
    "http_identity": HttpIdentityCheck,
    "json_metric": JsonMetricCheck,
    "manifest": ManifestCheck,
    "port": PortCheck,
    "port_free": PortFreeCheck,
    "process_alive": ProcessAliveCheck,
    "python_imports": ImportsCheck,
    "rows_at_least": RowsCheck,
    "sha256": Sha256Check,
}

Built = dict[str, Any]


def file(path: str, *, min_bytes: int = 1) -> Built:
    return {"file": {"path": path, "min_bytes": min_bytes}}


def manifest(path: str) -> Built:
    return {"manifest": {"path": path}}


def port_free(port: int) -> Built:
    return {"port_free": {"port": port}}


def json_metric(path: str, key: str, **bounds: float | str | bool) -> Built:
    return {"json_metric": {"path": path, "key": key, **bounds}}


def rows_at_least(glob: str, rows: int) -> Built:
    return {"rows_at_least": {"glob": glob, "rows": rows}}
