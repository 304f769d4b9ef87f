"""What leaves `format` is safe, of the right width, and says the right thing."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from runbook.tui import format as fmt
from runbook.tui import glyphs, themes
from runbook.tui.describe import Looks
from runbook.tui.screens.handoff import brief_text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("plain", "plain"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("a\tb", "a  b"),
        ("bell\x07 and \x00nul", "bell and nul"),
        ("\u202egnp.exe\u202c", "gnp.exe"),
        ("two\nlines", "two lines"),
        ("\x9b31mred", "red"),
        ("\x1bc reset", " reset"),
        ("[/] [0] [bold]", "[/] [0] [bold]"),
        ("end with \x1b", "end with "),
    ],
)
def test_escapes_and_controls_go(raw: str, shown: str) -> None:
    assert fmt.clean(raw) == shown


@given(st.text())
def test_nothing_unprintable_stays(raw: str) -> None:
    shown = fmt.clean(raw)
    assert not any(ord(c) < 0x20 or 0x7F <= ord(c) < 0xA0 for c in shown)


def test_an_escape_bomb_takes_no_time() -> None:
    bombs = ("\x1b[" * 200_000, "\x1b]" + "x" * 1_000_000, "\x1b[" + "0;" * 500_000)
    began = time.process_time()
    for bomb in bombs:
        fmt.clean(bomb, most=len(bomb))
    assert time.process_time() - began < 3


def test_an_unterminated_string_does_not_hide_the_rest_of_a_line() -> None:
    assert fmt.clean("\x1b]0;" + "x" * 5000, most=9000).endswith("x" * 500)


@given(st.text(max_size=60), st.integers(min_value=0, max_value=40))
def test_clip_and_pad_keep_the_width(raw: str, width: int) -> None:
    shown = fmt.clean(raw)
    assert cell_len(fmt.clip(shown, width)) <= width
    assert cell_len(fmt.pad(shown, width)) == width


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, ""), (0.4, "0s"), (59, "59s"), (192, "3m 12s"), (7500, "2h 05m"), (356_400, "4d 03h")],
)
def test_durations(seconds: float | None, shown: str) -> None:
    assert fmt.duration(seconds) == shown


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        (30000, "30000"),
        (54_100_200_300, "54,100,200,300"),
        (0.0003, "3.0e-04"),
        (2.3142, "2.314"),
        (True, "true"),
        ("", '""'),
        ({"b": 1, "a": [2]}, '{"a": [2], "b": 1}'),
        (None, "null"),
    ],
)
def test_values(found: object, shown: str) -> None:
    assert fmt.value(found) == shown


def test_charts_have_their_size_and_survive_odd_values() -> None:
    for values in ([], [1.0], [3.0, 3.0], [float("nan"), float("inf")], [5.0, 1.0] * 500):
        for plain in (False, True):
            lines = fmt.chart(values, 20, 4, ascii_only=plain)
            assert len(lines) == 4
            assert all(cell_len(line) == 20 for line in lines)
            assert not plain or all(line.isascii() for line in lines)


LOOKS = Looks(glyphs=glyphs.FANCY, inks=themes.inks({}))


def test_the_brief_is_shown_without_its_marks() -> None:
    text = brief_text("# Title\n\n**Next safe action:** `runbook run` (ready: a)\n", LOOKS)
    assert text.plain == "Title\n\nNext safe action: runbook run (ready: a)\n"
