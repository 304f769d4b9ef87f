"""Any verb, asked wrongly: one clear message and an exit code, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from runbook.service import Service
from tests.support.all_verbs import all_verbs
from tests.support.workspaces import command, make

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.runbook.conftest import Said

TASKS = """\
  good: {title: Good, phase: one, step: shell, with: {sh: "echo hi"}}
"""
VERBS = [(words, found) for words, found in all_verbs() if words not in ("tui", "mcp")]
NO_TEXT = "\udcff"
"""A byte that is no UTF-8, as Python has it from a command line."""
HUGE = str(10**20)
"""More than a database counts."""
BIDE = ("watch", "run", "host shell")
"""With an option that is right they would stay, or become another program."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong") / "ws"
    with make(made, TASKS) as service:
        service.run()
    return made


def required(verb: click.Command, value: str) -> list[str]:
    """Every argument and option that the verb cannot do without."""
    words = []
    for one in verb.params:
        if one.required:
            words += [value] if isinstance(one, click.Argument) else [one.opts[0], "x"]
    return words


def wrong_values(option: click.Option) -> list[str]:
    if isinstance(option.type, click.Path | click.types.StringParamType):
        return [NO_TEXT]
    return ["xx", HUGE, "nan", NO_TEXT]


def ways(words: str, verb: click.Command) -> Iterator[list[str]]:
    """Wrong arguments, then each option with a wrong value."""
    if required(verb, ""):
        yield [*words.split()]
        for value in ("no-such", NO_TEXT, ""):
            yield [*words.split(), *required(verb, value)]
    right = "box" if words.startswith("host") else "good"
    for option in verb.params:
        if not isinstance(option, click.Option) or option.is_flag or option.name == "workspace":
            continue
        for value in wrong_values(option):
            if words not in BIDE or option.name == "expect_rev":
                yield [*words.split(), *required(verb, right), f"{option.opts[-1]}={value}"]


def no_bug(said: Said, words: list[str]) -> None:
    code, out, err = said
    assert code != 70, (words, err)
    assert "Traceback" not in out + err, words
    if code == 2:
        told = [line for line in err.splitlines() if line.startswith(("runbook: ", "Error: "))]
        assert len(told) == 1, (words, err)


@pytest.mark.parametrize(("words", "verb"), VERBS, ids=[words for words, _ in VERBS])
def test_wrong_words_of_every_verb(
    folder: Path,
    tmp_path: Path,
    say: Callable[..., Said],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    verb: click.Command,
) -> None:
    monkeypatch.chdir(tmp_path)  # what is made, is made here
    for way in ways(words, verb):
        said = say(folder, *way)
        no_bug(said, way)
        if "no-such" in way and words != "note":
            assert said[0] != 0, way


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "xx"])
def test_a_price_is_a_number(folder: Path, say: Callable[..., Said], value: str) -> None:
    for words in (("rent", "box"), ("bind", "box", "local")):
        code, _, err = say(folder, "host", *words, f"--usd-per-hour={value}")
        assert code == 2
        assert "--usd-per-hour" in err


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b"a: [", b"", b"\0", None], ids=["utf16", "yaml", "none", "nul", "dir"]
)
def test_a_runbook_that_cannot_be_read(
    tmp_path: Path, say: Callable[..., Said], content: bytes | None
) -> None:
    make(tmp_path, TASKS).close()
    file = tmp_path / "runbook.yaml"
    file.unlink()
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    for words in (("init",), ("validate", str(file)), ("plan",)):
        said = say(tmp_path, *words)
        no_bug(said, list(words))
        assert said[0] != 0
    for words in (("status",), ("next",), ("brief",)):
        assert say(tmp_path, *words)[0] == 0, "the graph is there as it was taken over"


def test_kept_parameters_that_are_damaged(tmp_path: Path, say: Callable[..., Said]) -> None:
    make(tmp_path, TASKS).close()
    for text in ("{", "[]"):
        (tmp_path / ".runbook" / "params.json").write_text(text)
        code, _, err = say(tmp_path, "init")
        assert code == 2
        assert "params.json is damaged" in err


def run(folder: Path, *words: str, stdout: int | None) -> tuple[int, str]:
    done = subprocess.run(
        command(folder, *words), stdout=stdout, stderr=subprocess.PIPE, text=True, check=False,
        preexec_fn=(lambda: os.close(1)) if stdout is None else None,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("words", [("status",), ("status", "--json"), ("--help",)])
def test_a_reader_that_went_away_is_nothing_to_tell_of(
    folder: Path, words: tuple[str, ...]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    assert run(folder, *words, stdout=writing) == (1, "")
    os.close(writing)


def test_a_refusal_keeps_its_exit_code_where_nobody_reads_its_json(folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code, err = run(folder, "status", "no-such", "--json", stdout=writing)
    os.close(writing)
    assert code == 2
    assert err.startswith("runbook: There is no task 'no-such'.")
    assert "BrokenPipe" not in err


def test_output_that_cannot_be_kept_is_told(folder: Path) -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        code, err = run(folder, "status", stdout=full.fileno())
    assert (code, err) == (1, "runbook: No space left on device.\n")


def test_no_output_at_all_is_no_matter(folder: Path) -> None:
    """Its number would go to the next file that is opened: the database."""
    assert run(folder, "note", "said to nobody", stdout=None) == (0, "")
    with Service.open(folder) as service:
        assert service.snapshot().notes[-1].text == "said to nobody"


def test_ctrl_c_is_one_word(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slow.yaml")
    reader = subprocess.Popen(
        command(folder, "validate", str(tmp_path / "slow.yaml")),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    writing = os.open(tmp_path / "slow.yaml", os.O_WRONLY)  # returns once it reads
    reader.send_signal(signal.SIGINT)
    out, err = reader.communicate(timeout=60)
    os.close(writing)
    assert (reader.returncode, out, err.strip()) == (130, "", "runbook: Interrupted.")


def test_an_alphabet_without_our_signs(folder: Path) -> None:
    done = subprocess.run(
        command(folder, "status"), capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "good" in done.stdout
