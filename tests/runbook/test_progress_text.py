"""PROGRESS.md as the service writes it: no host forges its structure, money is told, edits too."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runbook.plan import load_text
from state import TaskState
from state.regions import fresh, take_apart
from tests.support.workspaces import HEAD, cli, make

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.service import Service
    from state import Snapshot

TASKS = """\
  good: {title: Good, phase: one, step: shell, with: {sh: "echo hi"}}
  bad: {title: Bad, phase: one, step: shell, with: {sh: "exit 1"}}
"""
MARKS = st.text(alphabet="`*#|<>!-[]()~_=&;:.\\\n\r\t $ab1\u2028\u202e\x00\x1b\u200b", max_size=40)
PIECES = st.sampled_from(
    ["<!-- runbook:end -->", "```", "\n## Tasks\n", "- [x] `all` done", "**Next safe action:**"]
)
HOSTILE = st.lists(st.one_of(MARKS, PIECES), max_size=4).map("".join)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Service:
    service = make(tmp_path_factory.mktemp("lived"), TASKS)
    service.run()
    with service.store.write() as tx:
        tx.record_artifact("good", uri="file:///x", size=1, sha256="0" * 64)
    return service


def told_by_a_host(snapshot: Snapshot, text: str) -> Snapshot:
    """The state after a host has said this wherever a host has a say."""
    return replace(
        snapshot,
        tasks=tuple(
            replace(
                task,
                reason=text if task.state is TaskState.FAILED else task.reason,
                out={**task.out, "message": text},
            )
            for task in snapshot.tasks
        ),
        checks=tuple(replace(check, evidence={text: text}) for check in snapshot.checks),
        artifacts=tuple(replace(one, uri=text, sha256=text) for one in snapshot.artifacts),
        hosts=tuple(replace(host, facts={"hostname": text}) for host in snapshot.hosts),
    )


def structure(body: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in body.split("\n"):
        kind = re.match(r"#+ |\*\*|```|~~~|> |\| ?|\s*- (\[.\])?|<|[-=]{3,}$", line)
        if kind:
            found[kind[0]] += 1
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(HOSTILE.filter(lambda text: text.strip() != ""))
def test_no_host_forges_structure(lived: Service, text: str) -> None:
    tame = lived.progress_body(told_by_a_host(lived.snapshot(), "x"))
    wild = lived.progress_body(told_by_a_host(lived.snapshot(), text))
    assert take_apart(fresh(wild, 1).text()).body == wild
    # Text of which nothing can be shown leaves its line out; none is ever added.
    extra = structure(wild) - structure(tame)
    assert not extra, (text, extra)
    assert structure(wild)["**"] == structure(tame)["**"]


def test_an_edit_in_our_part_is_told_and_kept(lived: Service) -> None:
    file = lived.workspace.progress_file
    lived.write_progress()
    file.write_text(file.read_text().replace("## Progress", "## Progress\n\nmy words"))
    said = cli(lived.workspace.root, "progress")
    assert "kept as a note" in said.stdout
    assert "my words" in lived.snapshot().notes[-1].text
    assert lived.progress_is_current()


def test_money_is_told_as_of_the_revision(tmp_path: Path) -> None:
    head = HEAD.replace("tasks:\n", "budget: {hours: 30, usd: 600}\ntasks:\n")
    with make(tmp_path, TASKS, head=head) as service:
        body = service.progress_body(service.snapshot())
        assert "## Budget" in body
        assert "| allowed | 30 | 600.00 |" in body
        assert service.progress_body(service.snapshot()) == body
        assert service.progress_is_current()
    assert load_text(head + TASKS, path="f", params={}).budget.usd == 600


def test_without_money_there_is_no_budget(lived: Service) -> None:
    assert "## Budget" not in lived.progress_body(lived.snapshot())
