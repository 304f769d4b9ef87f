"""The command line: exit codes, messages not tracebacks, nothing heavy before it is needed."""

from __future__ import annotations

import dataclasses
import pathlib
import subprocess
import sys

import pytest

from dflash import __main__ as cli
from dflash.errors import DflashError, GateFailed, Interrupted
from dflash.train_config import TrainConfig
from dflash.train_options import GROUPS

ROOT = pathlib.Path(__file__).parents[2]
HEAVY = "torch transformers pyarrow tokenizers numpy httpx"
OURS = ("fetch", "generate", "audit", "tokenize")


def python(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_help_loads_nothing_heavy():
    out = python(
        "import sys, contextlib\n"
        "from dflash.__main__ import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        f"print('loaded', [n for n in '{HEAVY}'.split() if n in sys.modules])"
    )
    assert "loaded []" in out
    for name in cli.COMMANDS:
        assert f"  {name} " in out


@pytest.mark.parametrize("name", OURS)
def test_help_of_a_command_shows_an_example_and_stays_light(name):
    out = python(
        "import sys, contextlib\n"
        "from dflash.__main__ import main\n"
        f"with contextlib.suppress(SystemExit): main(['{name}', '--help'])\n"
        f"print('loaded', [n for n in '{HEAVY}'.split() if n in sys.modules])"
    )
    assert f"  python -m dflash {name} --" in out
    assert "loaded []" in out


@pytest.mark.parametrize("module", ["progress", "errors", "files", "gates"])
def test_what_the_operators_side_reads_is_standard_library_only(module):
    out = python(
        f"import sys; import dflash.{module}\n"
        "print({n.split('.')[0] for n in sys.modules if not n.startswith('_')}"
        " - set(sys.stdlib_module_names) - {'dflash'})"
    )
    # Site hooks of an environment may load their own; ours must not be among them.
    assert not set(HEAVY.split()) & set(out.replace("'", " ").replace("{", " ").split())


@pytest.fixture
def command(monkeypatch):
    def put(run):
        class Module:
            @staticmethod
            def add_arguments(parser):
                parser.add_argument("--flag")

        Module.run = staticmethod(run)
        monkeypatch.setattr(cli.importlib, "import_module", lambda _name: Module)
        monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    return put


def raising(error):
    def run(_args):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DflashError("cannot", "do this"), 1),
        (GateFailed("cannot", "do this"), 4),
        (Interrupted("cannot", "do this"), 75),
        (KeyboardInterrupt(), 75),
        (OSError(28, "No space left on device", "/x/y"), 1),
    ],
)
def test_errors_become_codes(command, capsys, error, code):
    command(raising(error))
    assert cli.main(["audit"]) == code
    text = capsys.readouterr().err
    assert text.startswith("dflash audit: ")
    assert "Traceback" not in text
    if isinstance(error, DflashError):
        assert text == "dflash audit: cannot\n  do this\n"
    if isinstance(error, OSError):
        assert "No space left on device (/x/y)" in text


def test_a_slip_in_the_command_is_asked_about(capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["trian"])
    assert error.value.code == 2
    assert "there is no command 'trian'; did you mean train?" in capsys.readouterr().err


def test_the_options_of_training_are_sorted_and_their_choices_shown(capsys):
    fields = [field.name for field in dataclasses.fields(TrainConfig)]
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(fields)
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    out = capsys.readouterr().out
    assert "required, here or in --config:\n  --target DIR" in out
    assert "--schedule {wsd,cosine,constant}" in out
    assert " STR" not in out


def test_a_list_that_is_none_is_told_with_one_that_is(capsys):
    with pytest.raises(SystemExit) as error:
        cli.main(["train", "--taps", "a,b"])
    assert error.value.code == 2
    assert "argument --taps: 'a,b' is no list like 1,16,31" in capsys.readouterr().err


def test_the_installed_program_calls_itself_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/env/bin/dflash", "--help"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "usage: dflash COMMAND" in capsys.readouterr().out


def test_bugs_keep_their_traceback(command):
    command(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["audit"])


def test_a_missing_package_is_named_and_a_missing_file_of_ours_is_a_bug(command, capsys):
    command(raising(ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")))
    assert cli.main(["train"]) == 1
    said, hint = capsys.readouterr().err.splitlines()
    assert said == "dflash train: the package torch is not installed here"
    assert "dflash-runbook[dflash]" in hint
    command(raising(ModuleNotFoundError("No module named 'dflash.no'", name="dflash.no")))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train"])


@pytest.mark.parametrize("words", [[], ["unknown"], ["audit", "--fla", "x"]])
def test_usage(command, capsys, words):
    command(lambda _args: 0)
    with pytest.raises(SystemExit) as error:
        cli.main(words)
    assert error.value.code == 2
    assert "usage: python -m dflash" in capsys.readouterr().err


def test_another_distribution_of_that_name_is_refused(command, capsys, monkeypatch):
    command(lambda _args: 0)
    monkeypatch.setattr(cli.importlib.metadata, "version", lambda _name: "0.3")
    assert cli.main(["audit"]) == 1
    assert "another distribution named dflash (0.3)" in capsys.readouterr().err
