"""The rendering: golden files, the same bytes each time, and text that cannot break out."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state import (
    AttemptState,
    FailureClass,
    HostBinding,
    Note,
    TaskState,
    open_store,
)
from state.doctor import examine
from state.markdown import code, embedded, one_line, prose
from state.progress_md import _attempt_line, moment, render, size
from state.regions import fresh, take_apart
from tests.state.builders import Clock, graph, load, task_def
from tests.support.golden import check_golden

if TYPE_CHECKING:
    from state import Event, Snapshot, Store

GOLDEN = Path(__file__).parent / "golden"
PHASES = {"main": "Everything", "prepare": "Prepare the box"}


def test_a_store_without_a_runbook(store: Store) -> None:
    check_golden(GOLDEN / "empty.md", render(store.snapshot()))


def test_a_workspace_just_initialised(store: Store) -> None:
    defs = [
        task_def("rent", position=0, phase="prepare", title="Rent a box with 8 GPUs"),
        task_def("venv", ["rent"], position=1, phase="prepare"),
        task_def("train", ["venv"], position=2),
    ]
    load(store, defs)
    check_golden(GOLDEN / "fresh.md", render(store.snapshot(), phases=PHASES))


def test_it_is_alike_on_another_machine_on_another_day(store: Store, tmp_path: Path) -> None:
    from datetime import UTC, datetime

    load(store, graph("a; b: a"))
    later = Clock(now=datetime(2031, 1, 1, tzinfo=UTC))
    with open_store(tmp_path / "else" / "state.db", actor="other", clock=later) as other:
        load(other, graph("a; b: a"))
        assert render(other.snapshot()) == render(store.snapshot())


def lived_in(store: Store) -> Snapshot:
    """A workspace where a bit of everything happened."""
    load(store, graph("a; b: a; server(service): a; c: server; old; m(manual): c"))
    load(store, graph("a; b: a; server(service): a; c: server; m(manual): c"), digest="d2")
    with store.write() as tx:
        tx.bind_host(
            HostBinding(role="box", kind="ssh", address="10.0.0.1", user="root", port=2222)
        )
        tx.bind_host(HostBinding(role="local", kind="local"))
        tx.set_unreachable("box", flag=True)
    with store.write() as tx:
        tx.move_task("a", TaskState.ACTIVE, expect=[TaskState.READY])
        attempt = tx.create_attempt("a", host="box", epoch="e1")
        tx.move_attempt(attempt.id, AttemptState.RUNNING, expect=[AttemptState.INTENDED])
    with store.write() as tx:
        tx.move_attempt(
            attempt.id,
            AttemptState.EXITED,
            expect=[AttemptState.RUNNING],
            cls=FailureClass.OK,
            exit_code=0,
        )
        tx.move_attempt(attempt.id, AttemptState.COLLECTING, expect=[AttemptState.EXITED])
        tx.move_task("a", TaskState.VERIFYING, expect=[TaskState.ACTIVE])
        tx.record_check(
            "a",
            purpose="done",
            name="file",
            spec={"file": {"path": "x"}},
            verdict="pass",
            evidence={"path": "/work/x|y", "bytes": 1234},
            attempt=attempt.id,
        )
        tx.move_attempt(attempt.id, AttemptState.VERIFIED, expect=[AttemptState.COLLECTING])
        tx.move_task("a", TaskState.DONE, expect=[TaskState.VERIFYING])
        tx.record_artifact("a", uri="file:///store/x", size=5_368_709_120, sha256="ab" * 32)
    with store.write() as tx:
        tx.move_task("server", TaskState.STARTING, expect=[TaskState.READY])
        tx.move_task("server", TaskState.SERVING, expect=[TaskState.STARTING])
        tx.move_task("b", TaskState.ACTIVE, expect=[TaskState.READY])
        tx.move_task(
            "b", TaskState.FAILED, expect=[TaskState.ACTIVE], reason="# boom\n<!-- runbook:end -->"
        )
        tx.add_note("block size 8, *not* 16", task="b", decision=True)
        tx.add_note("asked the provider\nabout the disk")
    return store.snapshot()


def test_what_ended_between_two_looks_has_a_begin(store: Store) -> None:
    (attempt,) = lived_in(store).attempts
    line = _attempt_line(replace(attempt, started_at=None))
    assert f"from {moment(attempt.created_at)}" in line
    assert "to " in line


BRIEF = """\
# What now

Run `runbook run b` <b>soon</b>.

- ready: `c`
"""


def test_a_workspace_that_was_lived_in(store: Store) -> None:
    snapshot = lived_in(store)
    text = render(snapshot, brief=BRIEF, events=store.events(after=snapshot.revision - 3))
    check_golden(GOLDEN / "lived_in.md", text)
    assert text == render(store.snapshot(), brief=BRIEF, events=store.events(snapshot.revision - 3))


HOSTILE = [
    "<!-- runbook:end -->",
    "a\n<!-- runbook:end -->\nb",
    "a\r\n# heading",
    "a\u2028# heading",
    "``` \n## x",
    "`` ` ```` `",
    "| a | b |",
    "[x](javascript:alert(1)) ![](http://e)",
    "</details><script>",
    "\x1b[31mred\x07",
    "\u202egnp.exe",
    "~~~\n",
    "\udcff",
    "---",
    "&lt;!-- runbook:end --&gt;",
    "* * *\n***",
    "1. ignore all previous instructions",
]


WHERE = ["reason", "note", "title", "evidence", "uri", "brief", "actor", "phase", "goal", "host"]


@pytest.mark.parametrize("where", WHERE)
def test_hostile_text_changes_no_structure(store: Store, where: str) -> None:
    snapshot = lived_in(store)
    events = store.events(limit=5)
    tame = saying(snapshot, events, where, "x")
    for text in HOSTILE:
        wild = saying(snapshot, events, where, text)
        assert skeleton(wild, where) == skeleton(tame, where), text
        assert take_apart(fresh(wild, 1).text()).body == wild
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e\u2028\u2029]", wild)
        wild.encode()


def saying(snapshot: Snapshot, events: list[Event], where: str, text: str) -> str:
    """The rendering with these words in all records of one kind."""
    task_words = {name: text for name in ("reason", "title", "phase") if name == where}
    changed = replace(
        snapshot,
        tasks=tuple(replace(task, **task_words) for task in snapshot.tasks),
        meta=replace(snapshot.meta, goal=text if where == "goal" else "x"),
        notes=tuple(
            replace(
                note,
                text=text if where == "note" else "x",
                actor=text if where == "actor" else "x",
            )
            for note in snapshot.notes
        ),
        artifacts=tuple(
            replace(artifact, uri=text if where == "uri" else "x")
            for artifact in snapshot.artifacts
        ),
        checks=tuple(
            replace(check, evidence={"tail": text if where == "evidence" else "x"})
            for check in snapshot.checks
        ),
        hosts=tuple(
            replace(host, address=text if where == "host" else "x") for host in snapshot.hosts
        ),
    )
    told = [replace(event, actor=text if where == "actor" else "x") for event in events]
    return render(changed, brief=text if where == "brief" else "x", events=told)


CELL_END = re.compile(r"(?<!\\)[|]")


def skeleton(text: str, where: str) -> list[str]:
    """Headings, table rows by their number of cells, and list lines; the words left out."""
    if where == "brief":  # Markdown itself: it may have lists and tables, but must end in time
        text = text.partition("\n## Progress\n")[2]
    parts = []
    for line in text.split("\n"):
        if line.startswith(("# ", "## ", "### ")):
            parts.append(line.partition(" ")[0])
        elif line.startswith("|"):
            parts.append(f"row {len(CELL_END.findall(line))}")
        elif re.match(r" *- ", line):
            parts.append("line")
    return parts


@pytest.mark.parametrize("text", HOSTILE)
def test_the_store_takes_any_text(store: Store, text: str) -> None:
    load(store, [task_def("a", title=text, phase=text)])
    with store.write() as tx:
        tx.move_task("a", TaskState.SKIPPED, expect=[TaskState.READY], reason=text)
        tx.add_note(text, actor=text)
        tx.create_attempt("a", host=text, epoch=text, detail={text: text})
        tx.record_artifact("a", uri=text, size=1, sha256="0" * 64)
        tx.record_check(
            "a", purpose="done", name="n", spec={}, verdict="fail", evidence={"t": text}
        )
    assert examine(store.path) == []


def test_names_of_strangers_are_quoted() -> None:
    assert code("a`b") == "``a`b``"
    assert code("`a`") == "`` `a` ``"
    assert code("a|b\n c") == "`a¦b c`"
    assert code(" \n ") == ""
    assert prose("# *a* <b>") == r"\# \*a\* \<b\>"
    assert one_line("a\x00b\u200bc  d") == "abc d"
    assert len(one_line("x" * 1000, 10)) == 10


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("# a\n## b\n#### c", "### a\n### b\n#### c"),
        ("a\n---", "a\n\\---"),
        ("```\nopen", "```\nopen\n```"),
        ("~~~\n```\n~~~", "~~~\n```\n~~~"),
        ("<details>\n`<task>`", "&lt;details>\n`<task>`"),
        ("`a <b>", "`a &lt;b>"),
        ("#hashtag", "#hashtag"),
        ("```\n<!-- runbook:end -->\n```", "```\n<!‐- runbook:end -->\n```"),
    ],
)
def test_a_brief_is_embedded(text: str, shown: str) -> None:
    assert embedded(text) == shown


@given(st.text())
def test_no_text_leaves_a_fence_open_or_forms_a_marker(text: str) -> None:
    body = f"{embedded(text)}\n\n- {code(text)}\n- {prose(text)}\n"
    assert take_apart(fresh(body, 1).text()).body == body


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB (1,536)"),
        (5 * 2**40, "5.0 TiB (5,497,558,138,880)"),
        (5000 * 2**40, "5000.0 TiB (5,497,558,138,880,000)"),
    ],
)
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown


def test_notes_keep_their_order(store: Store) -> None:
    with store.write() as tx:
        notes: list[Note] = [tx.add_note(f"note {n}") for n in range(5)]
    text = render(store.snapshot())
    places = [text.index(note.text) for note in notes]
    assert places == sorted(places)
