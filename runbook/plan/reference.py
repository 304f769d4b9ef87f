"""The reference of runbook files, made from the models that judge them.

`scripts/render_docs.py` writes it to docs/runbook-file.md.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from runbook.plan.parameters import parameters
from runbook.plan.shape import (
    RETRYABLE,
    BudgetFile,
    DefaultsFile,
    GateFile,
    LimitsFile,
    NeedFile,
    ResourcesFile,
    RetryFile,
    RoleFile,
    RunbookFile,
    SecretFile,
    StallFile,
    TaskFile,
)
from runbook.steps import STEP_TYPES
from runbook.steps.checks import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pydantic import BaseModel

HEAD = """\
# Runbook files

<!-- Made by scripts/render_docs.py; do not edit. -->

Written from the models that judge the files. For editors there is a JSON Schema of the same:
`runbook schema`.

Strict YAML 1.2. An unknown or doubled key, an anchor, a tag is an error with its line and column;
`runbook validate` names all of them at once. Durations are `90s`, `10m`, `1h30m` or seconds;
sizes are `512MiB`, `4GB` or bytes. Paths on a host are absolute, as `${host.work}/NAME` is.

```yaml
version: 1
name: shards
title: Make shards on two machines and join them
params: {shards: 8}
hosts: {left: {group: makers}, right: {group: makers}, desk: {}}
phases: {make: Make, join: Join}
limits: {global: 6, per_host: {left: 2}}
budget: {usd: 50}
tasks:
  make:
    for_each: {hosts: makers, part: [a, b]}   # make@left[a] make@left[b] make@right[a] ...
    title: Make ${each.part} on ${each.host}
    phase: make
    step: shell
    with: {argv: [make-shard, "${each.part}", "--out", "${host.work}/${each.part}"]}
    done_when: [{file: {path: "${host.work}/${each.part}", min_bytes: 1MiB}}]
    estimate: 2h
    retry: {max: 2, on: ["exit(75)", lost_reboot], backoff: 30s}
    stall: {metric: done, for: 20m, action: stop}
  join:
    title: Join them
    phase: join
    host: desk
    needs: [make]                             # all members of the family
    step: shell
    with: {sh: "cat ${host.work}/* > ${host.work}/all"}
    gate: {ask: "Are all parts sound?"}
```

## References

| reference | stands for |
|---|---|
| `${param.NAME}` | a parameter |
| `${each.NAME}` | in a task with `for_each`: its value; `host`; places: see Families |
| `${host.root}`, `${host.work}` | where jobs and data are on the task's host |
| `${workspace}` | the folder of the workspace |
| `${task.NAME.out.KEY}` | a result of a task that goes before |

The first two are put in when the file is loaded, the others when the task starts: these may stand
in `with`, `done_when` and `ready_when`. A text that is one reference and nothing else takes the
value's type, except in `argv`, `env` and a server's `command` and `extra`, which hold words. `$${`
is a literal `${`. There is no expression language.

## Families

`for_each` makes one task of the file into a family of tasks. A count `{i: 8}` gives `make[0]` to
`make[7]`; a list `{part: [a, b]}` gives `make[a]` and `make[b]`; `{hosts: [box, bay]}`, or the
name of a group of host roles, gives `make@box` and `make@bay`, each on its host. Several are
crossed.

- `${each.index}` is the member's place from 0, `${each.number}` from 1, `${each.count}` out of how
  many; `${each.part_index}` and `${each.host_index}` are places on one axis.
- A need on `make` is a need on all its members; `make[a]` is one of them, `make@box` those on one
  host, and `"make[${each.part}]"` the counterpart in another family.
- A member's name comes from its value and not from its place: values may be added, taken away and
  reordered, and what is done stays done. Tasks that need the whole family turn stale when it
  grows.
- `stop` takes the name of a family of services. `${task.make[a].out.KEY}` names one member; as
  an element of a list, `${task.make.out.KEY}` stands for one element a member.
- `runbook status` shows a family as one line, with those members that need to be seen below it;
  `runbook status make` and `--all` show each. `run`, `verify` and `reconcile` take a family's
  name.

## What makes done work stale

A change of what results depend on: `step`, `with`, `host`, `needs`, the checks, GPUs and ports.
Titles, phases, `retry`, `timeout`, `stall`, `estimate`, `budget`, `gate`, `limits` and the size
of `shm_bytes` may change freely. `runbook plan` shows beforehand what an edit comes to.

Nothing new starts on what was made from a task that an edit made stale, however far above it is:
`runbook retry TASK --below` makes it all again, `runbook skip TASK --reason "..."` keeps what is
there.

A reboot of a host makes those done tasks stale whose checks are about `/dev/shm`, ports or
processes; another machine behind a role all that was made on the one before. `runbook verify`
asks their checks again and brings back what still holds.

## Waiting for resources, limits and budgets

A ready task waits while another task has one of its GPUs or ports on the same machine, while its
`shm_bytes` do not fit beside those of others, and while a limit is reached; `runbook status` says
which task has what it waits for. Before a task starts that would break a budget, or that its
estimate says cannot end before the rental of its host does, it waits for `runbook gate approve
TASK --reason ...` (`runbook run` leaves with exit code 9). `runbook host rent ROLE --usd-per-hour
18 --ends-at TIME` says what a machine costs; `runbook plan --cost` shows what is spent and what
is to come.

Estimates are measured once an attempt went well, also on other members of the family. Before a
long task ran at all, a short one can tell: `estimate: {like: pilot, of: rows, amount: 900000}`
takes the rows that `pilot` made and the time it took. Its start, and its end when most servers
wait for the last answers, count once: the rate is that of the time between, where its progress
shows one. Where `pilot` ran on several machines, at once (`for_each: {hosts: ...}`) or one after
the other behind a role, `plan --cost` has them in one table: rows an hour, hours, money, tokens
and bytes for the whole amount.
"""

BUNDLED = """\
`runbook init NAME --dir DIR` makes a workspace of one; what is required is given with it:
`runbook init qwen3.6-27b-dflash --dir work -p store=s3://BUCKET/FOLDER`. Parameters can be changed
in the copy `DIR/runbook.yaml`, or with `-p NAME=VALUE`, which the workspace remembers.
"""

PARTS: tuple[tuple[str, type[BaseModel]], ...] = (
    ("The file", RunbookFile),
    ("hosts", RoleFile),
    ("limits", LimitsFile),
    ("budget (of the run and of a task)", BudgetFile),
    ("defaults", DefaultsFile),
    ("tasks", TaskFile),
    ("needs", NeedFile),
    ("resources", ResourcesFile),
    ("retry", RetryFile),
    ("stall", StallFile),
    ("gate", GateFile),
    ("secrets", SecretFile),
)


def reference() -> str:
    """The whole text."""
    lines = [HEAD, "## Keys", ""]
    for title, model in PARTS:
        lines += [f"### {title}", "", *_table(model), ""]
    lines += ["Failure classes for `retry.on`: " + ", ".join(f"`{word}`" for word in RETRYABLE)]
    lines[-1] += "; `exit(N)` and `signal(N)` name one of many. Out of memory (`oom`) and a failed"
    lines += ["check (`check_failed`) are never retried unchanged.", ""]
    lines += ["## Step types", ""]
    for name, step in sorted(STEP_TYPES.items()):
        kind = {"once": "a job", "service": "a service", "manual": "a person"}[step.kind]
        lines += [f"### {name}", "", f"{_said(step)} ({kind})", "", *_table(step.Args), ""]
    lines += ["## Bundled runbooks", "", BUNDLED, *_bundled()]
    lines += ["## Checks", "", "For `done_when` (of jobs) and `ready_when` (of services).", ""]
    for name, check in sorted(CHECKS.items()):
        lines += [f"### {name}", "", _said(check), "", *_table(check), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _bundled() -> Iterator[str]:
    library = files("runbook") / "library"
    for path in sorted(library.iterdir(), key=lambda path: path.name):
        if path.name.endswith(".yaml"):
            yield from (f"### {path.name.removesuffix('.yaml')}", "")
            yield from ("| parameter | default | |", "|---|---|---|")
            for one in parameters(path.read_text(encoding="utf-8")):
                default = "" if one.default == "" else f"`{_yaml(one.default)}`"
                default = f"required: `{one.word()}`" if one.default is None else default
                about = one.about.replace("|", "\\|")
                yield f"| `{one.name}` | {default} | {about} |"
            yield ""


def _said(thing: object) -> str:
    """The first line of its docstring."""
    return (thing.__doc__ or "").strip().split("\n")[0]


def _table(model: type[BaseModel]) -> Iterator[str]:
    schema = model.model_json_schema()
    defs = schema.get("$defs", {})
    required = set(schema.get("required", ()))
    if not schema.get("properties"):
        yield "No arguments."
        return
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        said = str(field.get("description", "")).replace("|", "\\|")
        yield f"| `{name}` | {_type(field, defs)} | {default} | {said} |"


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    return "" if value in (None, "") or isinstance(value, list | dict) else f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _type(field: Mapping[str, Any], defs: Mapping[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        inner = defs.get(name, {})
        return _type(inner, defs) if "enum" in inner else "mapping"
    if "const" in field:
        return f"`{_yaml(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{_yaml(one)}`" for one in field["enum"])
    for key in ("anyOf", "allOf", "oneOf"):
        if key in field:
            kinds = [_type(one, defs) for one in field[key] if one.get("type") != "null"]
            return _choice(list(dict.fromkeys(kinds)))
    kind = field.get("type")
    if kind == "array":
        return f"list of {_type(field.get('items', {}), defs)}"
    if isinstance(kind, list):
        return "one value"
    if kind == "string" and "pattern" in field:
        return "text"
    words = {"string": "text", "integer": "whole number", "number": "number", "boolean": "yes/no"}
    return words.get(str(kind), "mapping" if kind == "object" else "any value")


def _choice(kinds: list[str]) -> str:
    # A duration is a number or a text; a size a whole number or a text.
    return " or ".join(kinds)
