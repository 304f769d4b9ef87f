"""`for_each`: what a family is called, what it needs, and what an edit of it makes stale."""

from __future__ import annotations

import time

import pytest

from runbook.plan import PlanError, json_schema, load_text

HEAD = """\
version: 1
name: many
title: Many of one
params: {shards: 3}
hosts: {box: {group: gpu}, bay: {group: gpu}, desk: {}}
phases: {one: One}
defaults: {host: desk}
tasks:
"""
SHARDS = """\
  make:
    for_each: {i: "${param.shards}"}
    title: Make shard ${each.i} of ${each.count}
    phase: one
    step: shell
    with: {argv: [make, "${each.i}", "part-${each.index}"]}
    resources: {gpus: ["${each.i}"]}
  join:
    title: Join
    phase: one
    needs: [make]
    step: shell
    with: {argv: [join, "${task.make[1].out.path}"]}
"""


def load(tasks: str, **params: str):
    return load_text(HEAD + tasks, path="runbook.yaml", params=params)


def problems(tasks: str) -> str:
    with pytest.raises(PlanError) as caught:
        load(tasks)
    return str(caught.value)


def one(for_each: str, more: str = "", title: str = "x") -> str:
    return f"""\
  make:
    for_each: {for_each}
    title: {title}
    phase: one
    step: shell
    with: {{argv: [x]}}
{more}"""


def test_a_count_makes_so_many_and_a_need_on_the_family_is_on_all() -> None:
    runbook = load(SHARDS)
    make = runbook.tasks[:3]
    assert [task.id for task in make] == ["make[0]", "make[1]", "make[2]"]
    assert make[2].title == "Make shard 2 of 3"
    assert make[2].args == {"argv": ["make", "2", "part-2"]}
    assert make[2].resources.gpus == (2,), "a reference alone takes the value's type"
    assert [need.task for need in runbook.tasks[3].needs] == ["make[0]", "make[1]", "make[2]"]
    assert make[0].definition()["family"] == "make"


def test_hosts_by_name_by_group_and_crossed_with_values() -> None:
    named = load(one("{hosts: [bay, box]}", title="On ${each.host}"))
    assert [(task.id, task.role, task.title) for task in named.tasks] == [
        ("make@bay", "bay", "On bay"),
        ("make@box", "box", "On box"),
    ]
    grouped = load(one("{hosts: gpu}"))
    assert [task.id for task in grouped.tasks] == ["make@box", "make@bay"]
    crossed = load(one("{hosts: gpu, part: [a, b]}"))
    assert [task.id for task in crossed.tasks][:3] == ["make@box[a]", "make@box[b]", "make@bay[a]"]


def test_a_member_may_need_its_counterpart() -> None:
    runbook = load("""\
  a:
    for_each: {i: 2}
    title: a
    phase: one
    step: shell
    with: {argv: [a]}
  b:
    for_each: {i: 2}
    title: b
    phase: one
    needs: ["a[${each.i}]"]
    step: shell
    with: {argv: [b, "${task.a[${each.i}].out.path}"]}
""")
    assert [[need.task for need in task.needs] for task in runbook.tasks[2:]] == [
        ["a[0]"],
        ["a[1]"],
    ]
    assert runbook.tasks[3].args["argv"][1] == "${task.a[1].out.path}"


def test_ids_and_hashes_of_members_outlive_edits_of_the_list() -> None:
    before = load(one("{part: [a, b]}")).tasks
    after = load(one("{part: [new, b, a]}")).tasks
    hashes = {task.id: task.definition_hash for task in after}
    assert [task.id for task in after] == ["make[new]", "make[b]", "make[a]"]
    assert all(hashes[task.id] == task.definition_hash for task in before)


def test_more_members_make_only_those_stale_that_need_all_of_them() -> None:
    def hashes(shards: str) -> dict[str, str]:
        plain = SHARDS.replace("of ${each.count}", "")
        return {task.id: task.definition_hash for task in load(plain, shards=shards).tasks}

    three, four = hashes("3"), hashes("4")
    assert four["make[1]"] == three["make[1]"]
    assert four["join"] != three["join"]


def test_services_of_a_family_are_stopped_together() -> None:
    runbook = load("""\
  serve:
    for_each: {i: 2}
    title: Serve
    phase: one
    step: serve
    with: {model: /m, port: 3000, venv: /v, served_name: m}
  stop:
    title: Stop
    phase: one
    needs: [serve]
    step: stop
    with: {tasks: [serve]}
""")
    assert runbook.tasks[2].args == {"tasks": ["serve[0]", "serve[1]"]}


@pytest.mark.parametrize(
    ("for_each", "said"),
    [
        ("8", "10:15: for_each is a mapping"),
        ("{i: 0}", "10:19: `i`: a count from 1"),
        ("{i: [a, a]}", "10:23: `a` stands here twice"),
        ("{i: [a/b]}", "10:20: `a/b` cannot be part of a task's name"),
        ("{I: 3}", "10:16: `I` cannot be a name here"),
        ("{count: 3}", "10:16: `count` cannot be a name here"),
        ("{hosts: [bux]}", "10:24: unknown host role `bux`; known: box, bay, desk (did you mean"),
        ("{hosts: gpus}", "10:23: no host role has `group: gpus`; groups: gpu (did you mean gpu?)"),
        ("{i: 200, j: 200}", "10:15: 40,000 tasks of one family"),
        ("{i: {a: 1}}", "10:19: `i`: a count such as 8, or a list of values"),
    ],
)
def test_what_is_wrong_with_a_for_each_is_told_with_its_place(for_each: str, said: str) -> None:
    found = problems(one(for_each))
    assert said in found
    assert found.count("\n") == 0, "once, not once a member"


def test_a_result_of_a_family_in_a_list_is_one_of_each_member() -> None:
    every = load(SHARDS.replace("task.make[1].out", "task.make.out")).tasks[3]
    assert every.args["argv"] == ["join", *(f"${{task.make[{i}].out.path}}" for i in range(3))]
    crossed = one("{hosts: gpu, part: [a, b]}", title="${each.host_index} ${each.part_index}")
    here = load(
        crossed
        + """\
  use:
    for_each: {hosts: gpu}
    title: Part ${each.number} of ${each.count}
    phase: one
    needs: ["make@${each.host}"]
    step: shell
    with: {argv: [use, "${task.make@${each.host}.out.path}"]}
"""
    )
    roles = dict.fromkeys(task.role for task in here.tasks)
    uses = [task for task in here.tasks if task.family == "use"]
    assert [task.title for task in here.tasks][:2] == ["0 0", "0 1"]
    assert [task.title for task in uses] == [f"Part {n} of {len(uses)}" for n in (1, 2)]
    for role, use in zip(roles, uses, strict=True):
        assert [need.task for need in use.needs] == [f"make@{role}[a]", f"make@{role}[b]"]
        assert use.args["argv"][1] == f"${{task.make@{role}[a].out.path}}"


def test_references_to_members_are_judged() -> None:
    wrong = one("{i: 2}", title="Shard ${each.j}")
    assert "unknown reference ${each.j}; known here: each.i" in problems(wrong)
    assert "only a task with `for_each` has it" in problems(
        "  a: {title: '${each.i}', phase: one, step: shell, with: {argv: [x]}}\n"
    )
    whole = SHARDS.replace("${task.make[1].out.path}", "in ${task.make.out.path}")
    assert "`make` is a family of 3; name one, such as `make[0]`" in problems(whole)
    missing = SHARDS.replace("needs: [make]", 'needs: ["make[7]"]')
    assert "unknown task `make[7]`" in problems(missing)
    own = one("{hosts: gpu}", "    host: box\n")
    assert "says the hosts already" in problems(own)
    itself = one("{i: 2}", "    needs: [make]\n")
    assert "needs itself" in problems(itself)


def test_the_schema_for_editors_knows_it() -> None:
    task = json_schema()["$defs"]["Task"]["properties"]
    assert {"for_each", "stall", "estimate", "budget"} <= set(task)


def test_ten_thousand_members_load_in_seconds() -> None:
    # Linear: a look at every member for every member would take minutes.
    began = time.process_time()
    runbook = load(SHARDS, shards="10000")
    assert len(runbook.tasks) == 10_001
    assert len(runbook.tasks[-1].needs) == 10_000
    assert time.process_time() - began < 20
