"""What the board shows of a view, without a screen."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from runbook.families import Family
from runbook.reasons import OTHER_KEY, WRONG_ANSWER
from runbook.tui import away, glyphs, themes
from runbook.tui import board_model as model
from runbook.tui.applies import refusal, suggested, working_keys
from runbook.tui.attention_model import matters
from runbook.tui.describe import Looks, Subject, describe
from runbook.tui.memory import Memory
from runbook.tui.timeline_model import row_of
from state.model import AttemptState, Event, FailureClass, Meta, TaskState
from tests.support.fake_service import NOW, World, ago, make_attempt, make_task

if TYPE_CHECKING:
    from runbook.views import View

LOOKS = Looks(glyphs=glyphs.FANCY, inks=themes.inks({}))


def names(rows: list[model.Row]) -> list[str]:
    return [row.id for row in rows if not isinstance(row, model.PhaseRow)]


def test_rows_stand_under_their_phases_in_order(world: World) -> None:
    rows = model.rows(world.open().view())
    assert [row.title for row in rows if isinstance(row, model.PhaseRow)] == [
        "Host", "Environments", "Data", "Drafter",
    ]  # fmt: skip
    assert names(rows)[:3] == ["rent", "probe", "venv-serve"]


def test_phase_titles_come_from_the_runbook(world: World) -> None:
    meta: Meta = replace(world.snapshot.meta, extra={"phases": '{"host": "The box [0]"}'})
    world.change(meta=meta)
    rows = model.rows(world.open().view())
    assert isinstance(rows[0], model.PhaseRow)
    assert rows[0].title == "The box [0]"


def test_filter_takes_all_words_anywhere(world: World) -> None:
    view = world.open().view()
    assert names(model.rows(view, needle="ENV serv")) == ["venv-serve"]
    assert names(model.rows(view, needle="no such")) == []
    assert names(model.rows(view, trouble=True)) == ["smoke", "look"]


def test_removed_tasks_are_not_shown(world: World) -> None:
    tasks = tuple(replace(task, removed=task.id == "probe") for task in world.snapshot.tasks)
    world.change(tasks=tasks)
    assert "probe" not in names(model.rows(world.open().view()))


def test_progress_of_an_attempt_before_is_not_shown(world: World) -> None:
    world.live["train"] = replace(world.live["train"], attempt="train-1")
    assert model.progress_of(world.open().view(), "train") is None


def test_no_link_lies_over_what_runs_only(world: World) -> None:
    hosts = tuple(replace(host, unreachable_since=ago(125)) for host in world.snapshot.hosts)
    world.change(hosts=hosts)
    view = world.open().view()
    assert model.word(view, view.snapshot.task("train")) == "no link"
    assert model.word(view, view.snapshot.task("tokenize")) == "done"
    assert "may well go on" in drawn(view, "train")


def test_what_a_machine_says_or_shows_instead_of_an_answer_is_told(world: World) -> None:
    hosts = tuple(replace(host, unreachable_since=ago(125)) for host in world.snapshot.hosts)
    known = {WRONG_ANSWER + "gpu": "gpu answers poll wrongly: disk quota exceeded"}
    world.change(hosts=hosts, meta=replace(world.snapshot.meta, extra=known))
    view = world.open().view()
    assert model.word(view, view.snapshot.task("train")) == "bad reply"
    said = drawn(view, "train")
    assert "bad reply for 2m 05s: it may well go on" in said
    assert "gpu: gpu answers poll wrongly: disk quota exceeded" in said
    assert "no link" not in said
    known[OTHER_KEY + "gpu"] = "SHA256:new (pinned: SHA256:old)"
    world.change(meta=replace(world.snapshot.meta, extra=known))
    view = world.open().view()
    assert model.word(view, view.snapshot.task("train")) == "other key"
    assert "gpu: it shows another host key, SHA256:new" in drawn(view, "train")
    assert "another host key" not in drawn(view, "tokenize"), "it is done: nothing is asked"


def test_a_machine_was_seen_when_it_told_how_an_attempt_ended(world: World) -> None:
    hosts = tuple(replace(host, seen_at=ago(900)) for host in world.snapshot.hosts)
    ended = make_attempt("eval", state="stopped", cls="stopped", started=800, ended=30)
    world.live.clear()
    check = replace(world.snapshot.checks[0], at=ago(20), epoch="e1")
    world.change(hosts=hosts, attempts=(ended,), checks=())
    assert model.seen(world.open().view(), "gpu") == ago(30)
    world.change(attempts=(replace(ended, state=AttemptState.LOST),))
    assert model.seen(world.open().view(), "gpu") == ago(800), "a loss may be only what we think"
    world.change(checks=(check, replace(check, at=ago(10), verdict="unknown")))
    assert model.seen(world.open().view(), "gpu") == ago(20), "it answered what was checked"


def test_how_an_attempt_ended_is_told_once(world: World) -> None:
    failed = make_attempt("eval", state="check_failed", cls="exit", exit_code=3)
    killed = replace(failed, cls=FailureClass.OOM, exit_code=None, signal=9)
    world.change(attempts=(failed, replace(killed, id="eval-2", number=2)))
    said = drawn(world.open().view(), "eval")
    assert "#1 exit 3  4m 00s" in said
    assert "#2 oom  signal 9  4m 00s" in said


def test_evidence_has_words_and_units(world: World) -> None:
    use = {"cpu_s": 12.5, "max_rss_bytes": 15_142_912}
    done = replace(make_attempt("tokenize"), evidence={"usage": use})
    world.change(attempts=(done,))
    said = drawn(world.open().view(), "tokenize", full=True)
    assert "usage  processor time 12.5 s, most memory 15.1 MB" in said


def test_a_definition_is_told_as_a_file_has_it(world: World) -> None:
    definition = {
        "needs": [["fetch", "ok"], ["probe", "any"]],
        "done_when": [{"file": {"path": "${host.work}/there", "sizes": [1, 2]}}],
    }
    tasks = tuple(replace(task, definition=definition) for task in world.snapshot.tasks)
    world.change(tasks=tasks)
    said = drawn(world.open().view(), "tokenize", full=True)
    assert "needs: fetch, probe" in said
    assert "- file: {path: ${host.work}/there, sizes: [1, 2]}" in said


def test_the_cursor_begins_where_something_runs(world: World) -> None:
    assert model.first_task(world.open().view()) == "train"
    world.move("train", "done")
    assert model.first_task(world.open().view()) == "smoke"


@pytest.mark.parametrize(
    ("task", "shown"),
    [
        ("train", ["active", "for 1h 12m", "620/1,000 steps", "loss 2.314", "oom", "tokenize"]),
        ("smoke", ["failed", "the answer was empty", "http_generate", "exit 3", "port 30000"]),
        ("weights", ["done", "in 33m 10s", "54.1 GB", "could not be asked", "timed out"]),
        ("export", ["blocked", "waits for eval, look"]),
    ],
)  # fmt: skip
def test_the_detail_says(world: World, task: str, shown: list[str]) -> None:
    text = drawn(world.open().view(), task)
    for part in shown:
        assert part in text


@pytest.mark.parametrize("width", [24, 40, 77, 200])
def test_the_detail_fits_any_width(world: World, width: int) -> None:
    view = world.open().view()
    for task in view.snapshot.tasks:
        for line in drawn(view, task.id, width=width).splitlines():
            assert len(line) <= width


def test_what_an_attempt_did_is_told_once(world: World) -> None:
    attempts = {one.task: one for one in world.snapshot.attempts}
    before, same = (
        replace(attempts["train"], id=f"t{n}", number=n, detail={"summary": [line]})
        for n, line in ((1, "another line"), (2, "a line"))
    )
    world.change(attempts=(before, same))
    told = drawn(world.open().view(), "train", full=True)
    assert told.count("another line") == 1
    assert told.count("a line") == 1


def test_plain_glyphs_are_ascii(world: World) -> None:
    looks = Looks(glyphs=glyphs.PLAIN, inks=themes.inks({}))
    text = drawn(world.open().view(), "train", looks=looks)
    assert text.isascii()


@pytest.mark.parametrize(
    ("environment", "ascii_only"),
    [
        ({"LANG": "en_US.UTF-8", "TERM": "xterm-256color"}, False),
        ({"LANG": "en_US.UTF-8", "TERM": "linux"}, True),
        ({"LANG": "en_US.UTF-8", "RUNBOOK_ASCII": "1"}, True),
        ({"LANG": "en_US.ISO-8859-1"}, True),
        ({"LC_ALL": "C.UTF-8", "LANG": "C"}, False),
    ],
)
def test_the_glyph_set_follows_the_terminal(environment: dict[str, str], ascii_only: bool) -> None:
    assert glyphs.choose(environment).ascii_only is ascii_only


def test_every_state_has_a_glyph_a_word_and_an_ink() -> None:
    for state in TaskState:
        for found in (glyphs.FANCY, glyphs.PLAIN):
            assert len(found.state(state)) == 1
        assert LOOKS.inks.state(state) is not None


@pytest.mark.parametrize(
    ("state", "verb", "refused"),
    [
        ("active", "stop", False),
        ("serving", "stop", False),
        ("done", "stop", True),
        ("failed", "retry", False),
        ("attention", "retry", False),
        ("active", "retry", True),
        ("gated", "approve", False),
        ("ready", "approve", True),
        ("blocked", "skip", False),
        ("done", "skip", True),
    ],
)
def test_verbs_apply_by_state(state: str, verb: str, refused: bool) -> None:
    task = make_task("t", state=state)
    said = refusal(verb, task, read_only=False)
    assert bool(said) is refused
    assert not said or "t is" in said
    assert "Read-only" in refusal(verb, task, read_only=True)


def test_what_a_person_stopped_is_called_stopped(world: World) -> None:
    world.move("train", "gated", "stopped by anna")
    view = world.open().view()
    train = view.snapshot.task("train")
    assert model.word(view, train) == "stopped"
    assert model.counts(view)["stopped"] == 1
    assert names(model.rows(view, needle="stopped")) == ["train"]
    assert refusal("approve", train, read_only=False) == (
        "train is stopped: it waits for nobody's yes; Retry runs it again."
    )
    found = {one.task: one for one in matters(view, now=NOW)}
    assert (found["train"].kind, found["train"].why) == ("stopped", "stopped by anna")
    before = Memory(seen_at=(NOW - timedelta(seconds=9000)).isoformat(), revision=-1)
    assert "train was stopped" in away.since(view, before, now=NOW)
    moved = Event(
        seq=9, at=ago(0), kind="task.moved", subject="train", task="train", actor="anna",
        payload={"to": "gated", "reason": "stopped by anna"},
    )  # fmt: skip
    assert "⊘ train stopped by anna" in "".join(text for text, _ in row_of(moved, LOOKS))
    ended = replace(moved, kind="attempt.moved", subject="a1", payload={"to": "verified"})
    assert "  train attempt verified" in "".join(text for text, _ in row_of(ended, LOOKS))
    family = Family(name="train", tasks=(train, make_task("train[1]", state="done")))
    assert (family.state, family.said) == ("stopped", "1 stopped, 1 of 2 done")


def test_what_waits_for_a_person_begins_with_what_nobody_wanted(world: World) -> None:
    world.move("probe", "gated", "stopped by anna")
    found = [one.kind for one in matters(world.open().view(), now=NOW)]
    assert found.index("failed") < found.index("stopped") < found.index("gate")


def test_the_footer_offers_what_works(world: World) -> None:
    view = world.open().view()
    train = view.snapshot.task("train")
    keys = working_keys(view, train, read_only=False, engine_runs=False)
    assert keys[0] == "run"
    assert "stop" in keys
    assert "retry" not in keys
    assert "run" not in working_keys(view, train, read_only=False, engine_runs=True)
    assert not {"run", "stop", "note"} & set(
        working_keys(view, train, read_only=True, engine_runs=False)
    )


@pytest.mark.parametrize(
    ("task", "command"),
    [
        ("smoke", "runbook retry smoke"),
        ("look", "runbook gate approve look"),
        ("train", "runbook logs train -f"),
        ("eval", "runbook run"),
    ],
)
def test_the_command_line_suggests_what_fits(world: World, task: str, command: str) -> None:
    view = world.open().view()
    assert suggested(view, view.snapshot.task(task)) == command


def drawn(
    view: View, task: str, *, width: int = 90, looks: Looks = LOOKS, full: bool = False
) -> str:
    """The detail as plain text."""
    console = Console(width=width, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    subject = Subject(
        view=view, task=view.snapshot.task(task), now=NOW + timedelta(seconds=0), plan=("a line",),
        full=full,
    )  # fmt: skip
    with console.file:
        console.print(describe(subject, looks, width=width))
        return console.export_text()
