"""The hand-off text: bounded, stable, quoted, and about one task when asked."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer

from runbook.brief import BUDGET, count_tokens, make_brief, render_brief
from state import UnknownTask
from tests.support.workspaces import HEAD, make

if TYPE_CHECKING:
    from collections.abc import Iterator

    from runbook.service import Service

TOKENIZER = Path(__file__).parent.parent / "assets" / "smollm2" / "tokenizer.json"
MANY = 400


def shell(name: str, sh: str, *needs: str) -> str:
    return (
        f"  {name}:\n    title: Task {name}\n    phase: one\n    needs: [{', '.join(needs)}]\n"
        f"    step: shell\n    with: {{sh: {sh!r}}}\n"
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One task done, one failed, many that cannot go on, and many words about them."""
    tasks = shell("first", "echo 1") + shell("second", "echo `no` >&2; exit 3", "first")
    tasks += "".join(shell(f"later-{i}", "true", "second") for i in range(MANY))
    with make(tmp_path_factory.mktemp("brief"), tasks) as made:
        made.run()
        for i in range(60):
            made.note(f"we learned that number {i} matters, because of so many reasons", task=None)
            made.note(f"decided {i}: " + "always prefer the slower way " * 6, decision=True)
        made.note("only about the second", task="second")
        yield made


def test_it_is_bounded_however_much_there_is_to_say(service: Service) -> None:
    for budget in (BUDGET, 1000, 400):
        text = service.brief(budget=budget)
        assert count_tokens(text) <= budget
        assert "**Next safe action:** `runbook retry second`" in text
        assert "more: `runbook" in text


def test_the_count_is_no_lower_than_a_real_tokenizers(service: Service) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    for text in (service.brief(), service.brief("second"), service.brief(budget=600)):
        real = len(tokenizer.encode(text).ids)
        assert real <= count_tokens(text) <= 2 * real


def test_what_matters_most_is_cut_last(service: Service) -> None:
    parts = make_brief(service.view(), service.events(limit=10_000), budget=500)
    left = {section.key: len(section.rows) for section in parts.sections}
    assert left["wrong"] == 1
    assert left["recent"] == 0
    assert left["notes"] == 0


def test_it_is_the_same_every_time(service: Service) -> None:
    assert service.brief() == service.brief()


def test_about_one_task(service: Service) -> None:
    text = service.brief("second")
    assert "**Task `second`: Task second**" in text
    assert "needs: `first`" in text
    assert f"and {MANY - 12} more" in text
    assert "only about the second" in text
    with pytest.raises(UnknownTask):
        service.brief("secnod")


def test_text_of_a_host_stays_inside_its_quotes(service: Service) -> None:
    line = next(row for row in service.brief().splitlines() if row.startswith("- `second` failed"))
    assert line.count("`") % 2 == 0
    following = next(row for row in service.brief().splitlines() if "Next safe action" in row)
    words = service.snapshot().task("second").reason.replace("`", "'")
    assert f"; it said `{words}`)" in following, "what tempts stands inside its quotes"


def test_deadlines_and_money_as_of_the_revision(tmp_path: Path) -> None:
    tasks = "  long: {title: L, phase: one, timeout: 2h, step: shell, with: {sh: sleep 300}}\n"
    tasks += (
        "  later: {title: L, phase: one, needs: [long], estimate: 9h, step: shell, with: {sh: x}}\n"
    )
    head = HEAD.replace("tasks:", "budget: {hours: 20, usd: 300}\ntasks:")
    with make(tmp_path, tasks, head=head) as service:
        left = threading.Event()
        service.run(stop_event=left, listen=lambda _: left.set())
        service.rent("box", usd_per_hour=18, ends_at="2026-03-09T18:00:00.000Z")
        text = service.brief()
        assert text == service.brief()
        service.stop("long")
    assert "`long` is stopped when it has run for 2 h, counted from 20" in text
    assert "of 20 h, $" in text
    assert "`box`: rental ends 2026-03-09 18:00Z; $18.00 an hour" in text
    assert "about 9 h to come there and do NOT fit before its end" in text
    assert "on box: the processes and files of `long`" in text


def test_what_others_still_need_is_not_to_be_touched(service: Service) -> None:
    assert "what these left on their hosts, others still need it: `first`" in service.brief()


def test_what_a_person_did_left_nothing_on_a_host(tmp_path: Path) -> None:
    asked = "  rent:\n    title: Rent\n    phase: one\n    step: manual\n    with: {ask: Rent it}\n"
    with make(tmp_path, asked + shell("first", "echo 1", "rent")) as made:
        made.run()
        made.approve("rent", "rented")
        assert "what these left on their hosts" not in made.brief()


def test_without_a_title_it_fits_under_one(service: Service) -> None:
    assert not render_brief(service.view(), titled=False).startswith("#")
