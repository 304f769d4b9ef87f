"""The shape of a runbook file, as pydantic models: what may stand where, and what it means."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from runbook.units import Seconds, Shape, Size
from state.model import FailureClass

Scalar = str | int | float | bool | None
NAME_WORDS = "a name: a small letter, then small letters, digits, - and _, 60 at most"
Slug = Annotated[str, Shape(r"^[a-z][a-z0-9_-]{0,59}$", NAME_WORDS)]
SecretName = Annotated[
    str, Shape(r"^[A-Z][A-Z0-9_]{0,63}$", "a variable's name: capitals, digits and _")
]
NOT_SECRETS = ("RUNBOOK_", "LD_", "PYTHON")
"""Beginnings of variables by which a secret would change what runs."""

# `oom` and `check_failed` come back the same unless something changes; the others are no failures.
NEVER_RETRIED = (
    FailureClass.OK,
    FailureClass.STOPPED,
    FailureClass.OOM,
    FailureClass.CHECK_FAILED,
)
RETRYABLE = tuple(cls.value for cls in FailureClass if cls not in NEVER_RETRIED)
EXACT = re.compile(r"^(exit|signal)\(([0-9]{1,3})\)$")
"""One exit code or signal of many: `exit(75)`."""


# Judged by the loader, which says it better than a union of types would.
AnyScalar = Annotated[
    Any, WithJsonSchema({"type": ["string", "integer", "number", "boolean", "null"]})
]


class FileModel(BaseModel):
    """Part of a runbook file."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class RoleFile(FileModel):
    """A host role; `runbook host bind` says which machine plays it."""

    title: Annotated[str, Field(description="What the machine is for.")] = ""
    group: Annotated[
        str, Field(description="Roles of one group can be named together in `for_each`.")
    ] = ""


class NeedFile(FileModel):
    """A need with a condition."""

    task: Annotated[str, Field(description="The task that goes first.")]
    condition: Annotated[
        Literal["ok", "any"],
        Field(description="ok: it is done, or serving; any: it ended, however."),
    ] = "ok"


def _need(value: object) -> object:
    return {"task": value} if isinstance(value, str) else value


ShortNeed = Annotated[
    NeedFile,
    BeforeValidator(_need),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "description": "The task that goes first."},
                {
                    "type": "object",
                    "properties": {
                        "task": {"type": "string"},
                        "condition": {"enum": ["ok", "any"], "default": "ok"},
                    },
                    "required": ["task"],
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class ResourcesFile(FileModel):
    """What the task must have for itself on its host."""

    gpus: Annotated[tuple[int, ...], Field(description="GPU numbers.")] = ()
    ports: Annotated[tuple[int, ...], Field(description="TCP ports.")] = ()
    shm_bytes: Annotated[Size | None, Field(description="Room in /dev/shm.")] = None

    def names(self) -> tuple[str, ...]:
        """What results depend on: which GPUs and ports, but not how much shared memory."""
        shm = ("shm",) if self.shm_bytes else ()
        return (*(f"gpu:{n}" for n in self.gpus), *(f"port:{n}" for n in self.ports), *shm)

    def claims(self) -> tuple[str, ...]:
        """What it holds while it runs: `gpu:0`, `port:30000`, `shm:1073741824` (bytes)."""
        named = (name for name in self.names() if name != "shm")
        return (*named, *((f"shm:{self.shm_bytes}",) if self.shm_bytes else ()))


class RetryFile(FileModel):
    """When a failed attempt is tried again without asking."""

    max: Annotated[int, Field(ge=1, le=20, description="Further attempts, at most.")]
    on: Annotated[
        tuple[str, ...],
        Field(
            min_length=1,
            description="Failure classes; `exit(75)` and `signal(9)` name one of many.",
            json_schema_extra={
                "items": {
                    "anyOf": [
                        {"type": "string", "enum": list(RETRYABLE)},
                        {"type": "string", "pattern": EXACT.pattern},
                    ]
                }
            },
        ),
    ]
    backoff: Annotated[
        Seconds, Field(description="Pause before the second attempt; it doubles with each.")
    ] = 0.0


class StallFile(FileModel):
    """What is done about a job that lives and gets no further."""

    metric: Annotated[
        str,
        Field(
            min_length=1,
            description="A field of its progress lines (`done`, `metrics.step`), or `output`.",
        ),
    ] = "done"
    for_: Annotated[
        Seconds, Field(alias="for", gt=0, description="How long it may stay what it is.")
    ]
    action: Annotated[
        Literal["warn", "stop"],
        Field(description="stop: end it as if its time limit had passed; `retry` then decides."),
    ] = "warn"


class LikeFile(FileModel):
    """An estimate from the rate of a smaller task: a pilot, on the same machine."""

    like: Annotated[str, Field(description="The task that is measured.")]
    of: Annotated[str, Field(description="A number among its results that counts the work.")] = (
        "rows"
    )
    amount: Annotated[
        float, Field(gt=0, description="How much of it is to come; a family shares it evenly.")
    ]


class BudgetFile(FileModel):
    """What may be spent without asking."""

    hours: Annotated[float | None, Field(gt=0, description="Machine hours.")] = None
    usd: Annotated[
        float | None, Field(gt=0, description="By `runbook host bind ... --usd-per-hour`.")
    ] = None

    def limits(self) -> dict[str, float]:
        """Those that are set."""
        found = {"hours": self.hours, "usd": self.usd}
        return {name: value for name, value in found.items() if value is not None}


class LimitsFile(FileModel):
    """How many jobs may run at once; services that serve are not counted."""

    global_: Annotated[
        int | None, Field(alias="global", ge=1, description="On all hosts together.")
    ] = None
    per_host: Annotated[
        dict[Slug, Annotated[int, Field(ge=1)]],
        Field(description="Host role -> jobs; 4 where it says nothing."),
    ] = {}  # pydantic copies it

    def values(self) -> dict[str, Any]:
        """Those that are set."""
        most = {} if self.global_ is None else {"global": self.global_}
        return {**most, **({"per_host": dict(self.per_host)} if self.per_host else {})}


class GateFile(FileModel):
    """A person's yes before the task runs."""

    ask: Annotated[str, Field(min_length=1, description="The question to the person.")]


class DefaultsFile(FileModel):
    """What a task has unless it says otherwise."""

    host: Annotated[str | None, Field(description="Host role.")] = None
    retry: RetryFile | None = None
    timeout: Annotated[Seconds | None, Field(description="Time limit of an attempt.")] = None


class TaskFile(FileModel):
    """A task of the graph."""

    title: Annotated[str, Field(min_length=1, description="What it does, for people.")]
    phase: Annotated[str, Field(description="A key of `phases`.")]
    host: Annotated[str | None, Field(description="A host role; a key of `hosts`.")] = None
    needs: Annotated[tuple[ShortNeed, ...], Field(description="Tasks that go first.")] = ()
    for_each: Annotated[
        dict[str, Any] | None,
        Field(
            description="Makes a family of tasks: `{i: 8}`, `{shard: [a, b]}`, `{hosts: [box]}`, "
            "or several of these crossed. `${each.NAME}` is the member's value.",
            json_schema_extra={
                "minProperties": 1,
                "properties": {
                    "hosts": {
                        "anyOf": [
                            {"type": "string", "description": "A group of host roles."},
                            {"type": "array", "items": {"type": "string"}, "minItems": 1},
                        ]
                    }
                },
                "additionalProperties": {
                    "anyOf": [
                        {"type": "integer", "minimum": 1},
                        {"type": "array", "items": {"type": ["string", "integer"]}, "minItems": 1},
                        {"type": "string", "description": "A group of host roles."},
                    ]
                },
            },
        ),
    ] = None
    step: Annotated[str, Field(description="The step type.")]
    with_: Annotated[
        dict[str, Any],
        Field(default_factory=dict, alias="with", description="Arguments of the step type."),
    ]
    done_when: Annotated[
        tuple[dict[str, Any], ...], Field(description="Checks on top of the step type's own.")
    ] = ()
    ready_when: Annotated[
        tuple[dict[str, Any], ...], Field(description="Checks on top of the step type's own.")
    ] = ()
    resources: ResourcesFile = ResourcesFile()
    retry: RetryFile | None = None
    timeout: Annotated[Seconds | None, Field(description="Time limit of an attempt.")] = None
    stall: Annotated[StallFile | None, Field(description="When no progress is worth a word.")] = (
        None
    )
    estimate: Annotated[
        Seconds | LikeFile | None,
        Field(description="How long it takes; measured, once an attempt of it went well."),
    ] = None
    budget: Annotated[BudgetFile | None, Field(description="For all its attempts.")] = None
    secrets: Annotated[
        tuple[str, ...], Field(description="Keys of `secrets` that its process gets.")
    ] = ()
    gate: GateFile | None = None


SECRET_KEYS = {"env": "name", "file": "path", "command": "argv"}
"""What each kind of source is told by; the name of an environment variable may be left out."""


class SecretFile(FileModel):
    """Where a secret's value is on the operator's machine. The value itself is kept nowhere."""

    from_: Annotated[
        Literal["env", "file", "command"],
        Field(alias="from", description="env: a variable; file: a file; command: what it prints."),
    ]
    name: Annotated[
        str | None, Field(min_length=1, description="Variable; default: the secret's own name.")
    ] = None
    path: Annotated[
        str | None, Field(min_length=1, description="File; from the workspace unless absolute.")
    ] = None
    argv: Annotated[tuple[str, ...] | None, Field(min_length=1, description="Command.")] = None

    @model_validator(mode="after")
    def told_by_its_key(self) -> SecretFile:
        """One kind of source, one key."""
        wanted = SECRET_KEYS[self.from_]
        given = [key for key in SECRET_KEYS.values() if getattr(self, key) is not None]
        wrong = [key for key in given if key != wanted]
        if wrong:
            raise ValueError(f"`{wrong[0]}` does not go with `from: {self.from_}`")
        if not given and self.from_ != "env":
            raise ValueError(f"`from: {self.from_}` needs `{wanted}`")
        return self

    def source(self) -> dict[str, Any]:
        """As the state keeps it."""
        return self.model_dump(by_alias=True, exclude_none=True, mode="json")


class RunbookFile(FileModel):
    """A runbook."""

    version: Annotated[Literal[1], Field(description="Version of this format.")]
    name: Annotated[
        str,
        Shape(r"^[a-z][a-z0-9._-]{0,59}$", NAME_WORDS.replace("- and _", "dots, - and _")),
        Field(
            description="Short name: letters, digits, dots, dashes. Not used in references.",
        ),
    ]
    title: Annotated[str, Field(min_length=1, description="One line for people.")]
    goal: Annotated[str, Field(description="What is true when all is done.")] = ""
    params: Annotated[
        dict[Slug, AnyScalar],
        Field(
            default_factory=dict,
            description="Defaults; null means that it must be given. `-p NAME=VALUE` overrides.",
        ),
    ]
    hosts: Annotated[dict[Slug, RoleFile], Field(default_factory=dict, description="Host roles.")]
    phases: Annotated[
        dict[Slug, str],
        Field(min_length=1, description="Parts of the work, in order, with titles."),
    ]
    limits: Annotated[LimitsFile, Field(description="Jobs at once.")] = LimitsFile()
    budget: Annotated[BudgetFile, Field(description="For the whole run.")] = BudgetFile()
    defaults: DefaultsFile = DefaultsFile()
    secrets: Annotated[
        dict[SecretName, SecretFile],
        Field(default_factory=dict, description="By the variable that tasks get them in."),
    ]
    tasks: Annotated[dict[Slug, Any], Field(min_length=1, description="The graph.")]
