"""Loading a runbook: what a good file becomes, and what is said of a bad one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runbook.plan import PlanError, Runbook, json_schema, load_runbook, load_text
from runbook.plan.references import ReferenceUnresolved, resolve
from runbook.plan.shape import RETRYABLE
from runbook.plan.yaml_reader import read_yaml
from runbook.steps import STEP_TYPES
from runbook.steps.serve_args import ServeArgs
from runbook.steps.server_argv import server_argv
from state.model import Need, TaskKind

DEMO = Path(__file__).parents[2] / "runbook" / "library" / "demo.yaml"

GOOD = """\
version: 1
name: small
title: A small one with ${param.who}
params: {port: 30000, who: "x", big: false, share: 0.5}
hosts: {box: {title: this machine}, other: {}}
phases: {one: First, two: Second}
defaults: {host: box, retry: {max: 1, on: [lost_reboot]}, timeout: 1h}
tasks:
  a:
    title: A
    phase: one
    step: shell
    with: {argv: [echo, "${param.who}-${param.big}", "${host.work}/x", "$${HOME}"], grace: 5s}
    done_when: [{port: {port: "${param.port}"}}, {free_space: {path: /x, bytes: 2KiB}}]
  person:
    title: Somebody does this
    phase: one
    step: manual
    with: {ask: Do it.}
  s:
    title: A server
    phase: two
    host: other
    needs: [a, {task: person, condition: any}]
    step: serve
    with: {venv: /v, model: "${task.a.out.path}", served_name: m, port: "${param.port}"}
    ready_when: [{http: {url: "http://x/", timeout_s: 10s}}]
    resources: {gpus: [0, 1], ports: ["${param.port}"], shm_bytes: 1GiB}
    retry: {max: 3, on: [exit, signal]}
    timeout: 10m
    gate: {ask: Really?}
"""

HEAD = """\
version: 1
name: small
title: T
params: {port: 1}
hosts: {box: {}}
phases: {one: First}
defaults: {host: box}
tasks:
"""


def loads(text: str, **params: str) -> Runbook:
    return load_text(text, path="r.yaml", params=params)


def told(text: str, **params: str) -> list[str]:
    with pytest.raises(PlanError) as caught:
        loads(text, **params)
    assert all(line.startswith("r.yaml:") for line in str(caught.value).splitlines())
    return [line.removeprefix("r.yaml:") for line in str(caught.value).splitlines()]


def test_a_good_file() -> None:
    runbook = loads(GOOD)
    assert runbook.title == "A small one with x"
    assert [task.id for task in runbook.tasks] == ["a", "person", "s"]
    a, person, s = runbook.tasks
    assert a.args["argv"] == ["echo", "x-false", "${host.work}/x", "$${HOME}"]
    assert a.done_when == ({"port": {"port": 30000}}, {"free_space": {"path": "/x", "bytes": 2048}})
    assert (a.role, a.timeout_s, a.retry and a.retry.max) == ("box", 3600.0, 1)
    assert (person.kind, person.role) == (TaskKind.MANUAL, None)
    assert s.needs == (Need(task="a"), Need(task="person", condition="any"))
    assert (s.kind, s.role, s.timeout_s, s.gate) == (TaskKind.SERVICE, "other", 600.0, "Really?")
    assert s.args["port"] == 30000
    assert s.ready_when[0]["http"]["timeout_s"] == 10.0
    assert s.resources.names() == ("gpu:0", "gpu:1", "port:30000", "shm")


def test_the_store_gets_the_whole_definition() -> None:
    record = loads(GOOD).task_defs()[2]
    assert (record.id, record.position, record.kind) == ("s", 2, TaskKind.SERVICE)
    assert json.loads(json.dumps(record.definition)) == record.definition
    assert record.definition["retry"] == {"max": 3, "on": ["exit", "signal"]}
    assert record.definition["gate"] == {"ask": "Really?"}
    assert record.definition["with"]["model"] == "${task.a.out.path}"


def test_parameters_take_the_type_of_their_default() -> None:
    runbook = loads(GOOD, port="31000", who="1", big="true", share="1")
    assert runbook.params == {"port": 31000, "who": "1", "big": True, "share": 1.0}
    assert runbook.tasks[0].args["argv"][1] == "1-true"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"port": "x"}, "4:16: parameter `port` must be a whole number; given 'x'"),
        ({"big": "1"}, "parameter `big` must be true or false"),
        ({"share": "half"}, "parameter `share` must be a number"),
        (
            {"prot": "1"},
            "4:1: no parameter `prot`; known: port, who, big, share (did you mean port",
        ),
    ],
)
def test_wrong_parameters(params: dict[str, str], said: str) -> None:
    assert any(said in line for line in told(GOOD, **params))


def test_a_parameter_without_a_default_must_be_given() -> None:
    text = GOOD.replace('who: "x"', "who: null")
    assert told(text) == ["4:23: parameter `who` has no default; give it: -p who=VALUE"]
    assert loads(text, who="me").tasks[0].args["argv"][1] == "me-false"


# Definition hash: what it sees and what not.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("title: A\n", "title: Another\n"),
        ("one: First", "one: 1st"),
        ("phase: one\n    step: shell", "step: shell\n    phase: two"),
        ("version: 1", "# a comment\nversion: 1\ngoal: more"),
        ("timeout: 1h", "timeout: 2h"),
        ("retry: {max: 1, on: [lost_reboot]}, ", ""),
        ("bytes: 2KiB", "bytes: 2048"),
        ("{path: /x, bytes: 2KiB}", "{bytes: 2KiB, path: /x}"),
        ("this machine", "that machine"),
    ],
)
def test_cosmetic_edits_do_not_change_the_hash(old: str, new: str) -> None:
    assert old in GOOD
    before, after = loads(GOOD), loads(GOOD.replace(old, new))
    assert after.tasks[0].definition_hash == before.tasks[0].definition_hash
    assert after.digest != before.digest, "what a person approved is the text"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("argv: [echo, ", "argv: [echo, -n, "),
        ("grace: 5s", "grace: 6s"),
        ("    step: shell", "    host: other\n    step: shell"),
        ("    step: shell", "    needs: [person]\n    step: shell"),
        ("{port: {port: ", "{port: {host: h, port: "),
        ('who: "x"', 'who: "y"'),
    ],
)
def test_real_edits_change_the_hash(old: str, new: str) -> None:
    assert old in GOOD
    before, after = loads(GOOD), loads(GOOD.replace(old, new))
    assert after.tasks[0].definition_hash != before.tasks[0].definition_hash


def test_a_parameter_changes_only_the_tasks_that_use_it() -> None:
    before, after = loads(GOOD), loads(GOOD, who="z")
    changed = [
        a.id
        for a, b in zip(before.tasks, after.tasks, strict=True)
        if a.definition_hash != b.definition_hash
    ]
    assert changed == ["a"]


# What is said of bad files.


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ("{title: A, phase: one, step: shel, with: {}}", "9:35: unknown step type `shel`"),
        ("{title: A, phase: one, step: shel}", "(did you mean shell?)"),
        ("{title: A, phase: noe, step: probe}", "9:24: unknown phase `noe`; known: one"),
        ("{title: A, phase: one, step: probe, host: bxo}", "unknown host role `bxo`; known: box"),
        ("{title: A, phase: one, step: probe, needs: [b]}", "unknown task `b`; known: a"),
        ("{title: A, phase: one, step: probe, needs: [a]}", "task `a` needs itself"),
        ("{title: A, phase: one, step: probe, needs: a}", "`needs`"),
        ("{title: A, phase: one, step: probe, needs: [{task: a, condition: okay}]}", "mean ok?"),
        ("{title: A, phase: one, step: probe, tilte: x}", "9:42: unknown key `tilte`"),
        ("{phase: one, step: probe}", "9:3: `title` is missing"),
        ("{title: A, phase: one, step: probe, with: {min_cpu: 1}}", "(did you mean min_cpus?)"),
        (
            "{title: A, phase: one, step: probe, with: {min_cpus: '1'}}",
            'must be a whole number; found "1"',
        ),
        ("{title: A, phase: one, step: probe, with: {min_cpus: 1.5}}", "must be a whole number"),
        ("{title: A, phase: one, step: probe, with: {min_memory: lots}}", "write 512MiB, 4GB"),
        ("{title: A, phase: one, step: probe, timeout: soon}", "write 90s, 10m, 1h30m"),
        ("{title: A, phase: one, step: probe, timeout: -1}", "cannot be -1"),
        ("{title: A, phase: one, step: probe, needs: b}", '`needs` must be a list; found "b"'),
        ("{title: A, phase: one, step: probe, retry: {max: 0, on: [lost]}}", "must be at least 1"),
        ("{title: A, phase: one, step: probe, estimate: soon}", "'soon' is not a duration"),
        ("{title: A, phase: one, step: probe, estimate: {like: a}}", "`amount` is missing"),
        (
            "{title: A, phase: one, step: probe, retry: {max: 1, on: [lost]}}",
            "failure class `lost`",
        ),
        ("{title: A, phase: one, step: probe, retry: {max: 1, on: [oom]}}", "never retried"),
        ("{title: A, phase: one, step: probe, retry: {max: 1, on: []}}", "`on`"),
        ("{title: A, phase: one, step: probe, gate: {}}", "`ask` is missing"),
        ("{title: A, phase: one, step: probe, done_when: [{prot: {}}]}", "unknown check `prot`"),
        ("{title: A, phase: one, step: probe, done_when: [{port: {}}]}", "`port` is missing"),
        ("{title: A, phase: one, step: probe, done_when: [{port: {port: 70000}}]}", "65535"),
        (
            "{title: A, phase: one, step: probe, done_when: [{file: {path: x}, port: {}}]}",
            "one key",
        ),
        (
            "{title: A, phase: one, step: probe, done_when: [file]}",
            "9:54: each of `done_when` must be a mapping",
        ),
        (
            "{title: A, phase: one, step: probe, done_when: [{json_metric: {path: /x, key: y}}]}",
            "give at least one of min, max",
        ),
        ("{title: A, phase: one, step: probe, ready_when: [{process_alive: {}}]}", "no service"),
        ("{title: A, phase: one, step: manual, host: box, with: {ask: x}}", "manual task has no"),
        (
            "{title: A, phase: one, step: shell, with: {argv: [ls], cdw: '${host.work}'}}",
            "(did you mean cwd?)",
        ),
        ("{title: A, phase: one, step: probe, tilte: '${host.work}'}", "unknown key `tilte`"),
        (
            "{title: A, phase: one, step: fetch, with: {venv: '${host.work}/v', out: x}}",
            "`pypi` is missing",
        ),
        (
            "{title: A, phase: one, step: manual, with: {ask: x}, done_when: [{port: {port: 1}}]}",
            "a manual task is done when a person says so",
        ),
        (
            "{title: A, phase: one, step: serve, done_when: [{port: {port: 1}}]}",
            "a service is done when it is stopped",
        ),
        ("{title: A, phase: one, step: stop, with: {tasks: [a]}}", "task `a` is no service"),
        ("{title: A, phase: one, step: stop, with: {tasks: [z]}}", "9:56: unknown task `z`"),
        ("{title: A, phase: one, step: shell, with: {}}", "give exactly one of argv and sh"),
        ("{title: A, phase: one, step: shell}", "give exactly one of argv and sh"),
        ("{title: A, phase: one, step: fetch}", "`venv` is missing"),
        ("{title: A, phase: one, step: shell, with: {argv: ls}}", "9:55: `argv`"),
        (
            "{title: A, phase: one, step: shell, with: {argv: ['${param.prot}']}}",
            "mean param.port?",
        ),
        ("{title: A, phase: one, step: shell, with: {argv: ['${HOME}']}}", "write $${ for a shell"),
        ("{title: A, phase: one, step: shell, with: {argv: ['${param.port']}}", "no closing brace"),
        ("{title: A, phase: one, step: shell, with: {argv: ['${host.wrok}']}}", "mean host.work?"),
        ("{title: A, phase: one, step: shell, with: {argv: ['${task.z.out.x}']}}", "task `z`"),
        ("{title: '${host.work}', phase: one, step: probe}", "it may stand in with, done_when"),
        ("3", "9:6: `a` must be a mapping"),
        ("", "`a`"),
    ],
)
def test_a_bad_task(task: str, said: str) -> None:
    lines = told(f"{HEAD}  a: {task}\n")
    assert any(said in line for line in lines), lines


def test_of_a_union_one_problem_is_told() -> None:
    lines = told(f"{HEAD}  a: {{title: A, phase: one, step: probe, estimate: soon}}\n")
    assert len(lines) == 1, lines


def test_a_parameter_that_does_not_fit_is_told_once_and_where_it_is_declared() -> None:
    text = """\
version: 1
name: small
title: T
params:
  # How many cores.
  cores: none  # -p cores=4
hosts: {box: {}}
phases: {one: One}
defaults: {host: box}
tasks:
  a: {title: A, phase: one, step: probe, with: {min_cpus: "${param.cores}"}}
  b: {title: B, phase: one, step: probe, with: {min_gpus: "${param.cores}"}}
"""
    assert told(text) == [
        (
            "6:10: parameter `cores` does not fit `min_cpus` of task `a`: must be a whole number; "
            'found "none" (How many cores.)'
        )
    ]


def test_a_cycle_is_spelled_out() -> None:
    tasks = "".join(
        f"  {name}: {{title: T, phase: one, step: probe, needs: [{need}]}}\n"
        for name, need in (("a", "c"), ("b", "a"), ("c", "b"))
    )
    assert told(HEAD + tasks) == ["9:42: the needs go in a circle: a -> c -> b -> a"]


def test_results_are_only_those_of_tasks_that_ran_before() -> None:
    tasks = """\
  a: {title: T, phase: one, step: probe}
  b: {title: T, phase: one, step: shell, with: {argv: [x, "${task.a.out.k}"]}}
"""
    assert told(HEAD + tasks) == [
        (
            "10:59: ${task.a.out.k}: `b` does not need `a`, which may not have run by then; "
            "add it to `needs`"
        )
    ]
    further = tasks.replace("shell, ", "shell, needs: [m], ")
    middle = "  m: {title: T, phase: one, step: probe, needs: [a]}\n"
    assert len(loads(HEAD + further + middle).tasks) == 3


def test_all_problems_are_told_at_once() -> None:
    text = """\
version: 2
name: Small
titel: T
params: {a: [1], b: "${param.a}"}
hosts: {box: {name: x}}
phases: {}
defaults: {host: bxo}
tasks:
  a: {phase: one, step: shel, needs: [b], extra: 1}
  b: {title: !!str B, phase: one, step: stop, with: {tasks: [a], all: true}}
  A: {title: B, phase: one, step: probe}
"""
    lines = told(text)
    for said in (
        "1:10: `version` must be 1; found 2",
        "2:7: `name`",
        "3:1: unknown key `titel`",
        "did you mean title?",
        "parameter `a` must be one value",
        "4:21: unknown reference ${param.a}",
        "5:15: unknown key `name`",
        "`phases`",
        "7:18: unknown host role `bxo`",
        "9:3: `title` is missing",
        "9:25: unknown step type `shel`",
        "9:43: unknown key `extra`",
        "10:14: a tag",
        "10:66: unknown key `all`",
        "11:3: ",
    ):
        assert any(said in line for line in lines), (said, lines)
    places = [tuple(map(int, line.split(":")[:2])) for line in lines]
    assert places == sorted(places)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.yaml:1:1: cannot be read: No such file"):
        load_runbook(tmp_path / "none.yaml")
    bad = tmp_path / "bad.yaml"
    bad.write_bytes(b"version: 1\nname: \xff\n")
    with pytest.raises(PlanError, match=r"bad\.yaml:2:1: not UTF-8 \(byte 0xff\)") as caught:
        load_runbook(bad)
    assert "runbook validate" in caught.value.hint


@pytest.mark.parametrize("text", ["", "- a", "just text", "3", "# nothing\n"])
def test_a_file_that_is_no_runbook(text: str) -> None:
    assert told(text) == ["1:1: not a runbook: the file must be a mapping with `version: 1`"]


# References when a step is planned.


def resolved(value: Any, **outs: Any) -> Any:
    return resolve(value, root="/r", work="/w", workspace="/ws", outs=outs)


def test_late_references() -> None:
    args = {"a": ["${host.root}:${host.work}", "${workspace}"], "n": "${task.t.out.n}", "m": 3}
    assert resolved(args, t={"n": 7}) == {"a": ["/r:/w", "/ws"], "n": 7, "m": 3}
    assert resolved("x${task.t.out.a.b}", t={"a": {"b": True}}) == "xtrue"
    assert resolved("$${HOME} ${host.work}") == "${HOME} /w"


def test_a_result_with_a_reference_in_it_is_not_looked_into() -> None:
    assert resolved("${task.t.out.x}!", t={"x": "${host.work}"}) == "${host.work}!"


@pytest.mark.parametrize(
    ("outs", "said"),
    [
        ({}, "task t has recorded no results yet"),
        ({"t": {"x": 1}}, "task t recorded no `k`; it recorded: x"),
        ({"t": {"k": 1}}, None),
    ],
)
def test_a_result_that_is_not_there(outs: dict[str, Any], said: str | None) -> None:
    if said is None:
        assert resolved("${task.t.out.k}", **outs) == 1
        return
    with pytest.raises(ReferenceUnresolved, match=said) as caught:
        resolved("${task.t.out.k}", **outs)
    assert caught.value.hint


# The schema, the bundled runbook, and rough handling.


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json_schema()


@pytest.fixture(scope="module")
def validator(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_schema_knows_every_step_type_and_check(schema: dict[str, Any]) -> None:
    assert {f"with_{name}" for name in STEP_TYPES} <= set(schema["$defs"])
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("text", [GOOD, DEMO.read_text()], ids=["good", "demo"])
def test_good_files_satisfy_the_schema(
    text: str, validator: jsonschema.Draft202012Validator
) -> None:
    validator.validate(read_yaml(text).data)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("step: shell", "step: shel"),
        ("grace: 5s", "grays: 5s"),
        ("grace: 5s", "grace: soon"),
        ("{port: {port", "{prot: {port"),
        ("{port: {port:", "{port: {prot:"),
        ("served_name: m, ", ""),
        ("on: [exit, signal]", "on: [oom]"),
        ("condition: any", "condition: never"),
        ("name: small", "nome: small"),
    ],
)
def test_bad_files_do_not(old: str, new: str, validator: jsonschema.Draft202012Validator) -> None:
    assert old in GOOD
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(read_yaml(GOOD.replace(old, new)).data)


def test_a_servers_own_command_may_have_references() -> None:
    """Beside the template's own words, which are put in after them."""
    words = '["${host.work}/bin/vllm", "{model}", --port, "{port}", -n, "${param.n}", "$${{HOME}}"]'
    text = f"""\
version: 1
name: own
title: A server of one's own
params: {{n: 3}}
hosts: {{box: {{}}}}
phases: {{one: One}}
defaults: {{host: box}}
tasks:
  s:
    title: S
    phase: one
    step: serve
    with: {{engine: command, command: {words}, model: /m, served_name: m, port: 3000}}
"""
    (task,) = load_text(text, path="r.yaml", params={}).tasks
    args = ServeArgs.model_validate(resolved(dict(task.args)))
    assert server_argv(args, "") == ("/w/bin/vllm", "/m", "--port", "3000", "-n", "3", "${HOME}")
    with pytest.raises(PlanError, match=r"\{wrong\}, which is nothing"):
        load_text(text.replace("{model}", "${host.work}/{wrong}"), path="r.yaml", params={})


def test_the_demo_loads_with_any_engine() -> None:
    runbook = load_runbook(DEMO)
    assert runbook.name == "demo"
    assert list(runbook.phases) == ["prepare", "generate", "data", "train", "prove", "deliver"]
    services = {task.id for task in runbook.tasks if task.kind is TaskKind.SERVICE}
    assert services == {"serve-a", "serve-b"}
    assert {task.role for task in runbook.tasks} == {"box"}
    other = load_runbook(DEMO, {"engine": "transformers", "port_a": "31000", "envs": "/e"})
    assert {t.args["engine"] for t in other.tasks if t.step == "serve"} == {"transformers"}
    with pytest.raises(PlanError, match="`engine`"):
        load_runbook(DEMO, {"engine": "vllm"})
    with pytest.raises(PlanError, match="nccl_port"):
        load_runbook(DEMO, {"port_a": "32767"})


def test_retryable_classes_are_those_worth_it() -> None:
    assert "lost_reboot" in RETRYABLE
    assert not {"ok", "oom", "check_failed", "stopped"} & set(RETRYABLE)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_file_is_told_about_or_loads(data: st.DataObject) -> None:
    """A cut, doubled or altered file is never a crash: an editor saves halves, a disk fills."""
    at = data.draw(st.integers(0, len(GOOD)))
    upto = data.draw(st.integers(at, min(len(GOOD), at + 40)))
    put = data.draw(st.text(alphabet="ab:{}[]&*!?%|>-\"'#, \n\t${}.1é", max_size=6))
    text = GOOD[:at] + put + GOOD[upto:]
    try:
        loads(text)
        problems = None
    except PlanError as error:
        problems = error.problems
    lines = text.count("\n") + 2
    assert problems is None or problems
    assert all(1 <= problem.line <= lines for problem in problems or ())


def test_a_fresh_start_needs_neither_textual_nor_torch() -> None:
    code = (
        "import sys, runbook.plan; bad = {'textual', 'torch', 'paramiko'} & set(sys.modules);"
        "sys.exit(f'imported {bad}' if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=DEMO.parents[2])
    assert done.returncode == 0
