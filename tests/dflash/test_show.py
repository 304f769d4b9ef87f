"""`dflash show`: one row with its mask, in colour or not, and harmless."""

from __future__ import annotations

import io
import pathlib
import re

import pytest

from dflash import show
from dflash.__main__ import main
from dflash.completions import CompletionStore
from dflash.progress import Progress
from dflash.tokenize import tokenize

ASSETS = pathlib.Path(__file__).parents[1] / "assets"
MODEL = str(ASSETS / "smollm2")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    work = tmp_path_factory.mktemp("show")
    with CompletionStore(work / "in", settings={"model": "m"}, shard_rows=5) as store:
        for number in range(12):
            asked = {"role": "user", "content": f"q{number} \x1b[31m 🙂"}
            store.add(
                {"id": f"r{number}", "messages": [asked], "completion": f"Köln 🙂 {number}",
                 "finish_reason": "stop"}
            )  # fmt: skip
        store.finish(complete=True, failed=0)
    tokenize(
        completions=work / "in", tokenizer=ASSETS / "smollm2", out=work / "set", progress=Progress()
    )
    return work


@pytest.fixture(autouse=True)
def load_once(monkeypatch, load_tokenizer):
    monkeypatch.setattr(
        "dflash.show.TargetTokenizer", lambda path: load_tokenizer(pathlib.Path(path))
    )


@pytest.mark.parametrize("kind", ["tokenized", "completions"])
@pytest.mark.parametrize("name", ["r0", "r11"])
def test_a_row_with_its_loss_between_marks(folders, capsys, kind, name):
    folder = folders / ("set" if kind == "tokenized" else "in")
    assert main(["show", name, f"--{kind}", str(folder), "--tokenizer", MODEL]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith(f"{name}  ")
    number = name.removeprefix("r")
    assert f"<|im_start|>assistant\n⟦Köln 🙂 {number}<|im_end|>⟧" in out
    assert "\x1b" not in out  # neither ours, off a terminal, nor the prompt's


def test_tokens_one_a_line(folders, capsys):
    words = ["show", "r3", "--tokenized", str(folders / "set"), "--tokenizer", MODEL, "--tokens"]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    assert re.fullmatch(r" +0       +\d+  '<\|im_start\|>'", lines[0])
    assert re.fullmatch(r" +\d+ loss +2  '<\|im_end\|>'", lines[-1])


def test_colour_is_for_terminals_without_no_color(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert show.wants_colour(Terminal())
    assert not show.wants_colour(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not show.wants_colour(Terminal())


def test_coloured(folders, smol):
    _, row = show.find_row(folders / "set", "r3", None)
    text = show.painted(row, smol, colour=True)
    assert f"{show.LOSS}Köln 🙂 3{show.RESET}{show.MARK}<|im_end|>{show.RESET}" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == show.harmless(smol.decode(row.input_ids.tolist()))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nobody", "--tokenized", "set"], "there is no row 'nobody' in"),
        (["nobody", "--completions", "in"], "there is no row 'nobody' in"),
        (["r1", "--tokenized", "set", "--split", "test"], "has no split 'test'"),
        (["r1", "--tokenized", "nowhere"], "there is no tokenized set's manifest"),
    ],
)
def test_wrong_words(folders, capsys, words, message):
    paths = [str(folders / w) if w in ("set", "in", "nowhere") else w for w in words]
    assert main(["show", *paths, "--tokenizer", MODEL]) == 1
    assert message in capsys.readouterr().err
