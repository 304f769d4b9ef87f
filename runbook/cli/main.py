"""The command group: which verbs there are, where each lives, and how errors leave the process."""

from __future__ import annotations

import os
import sys
import traceback
from contextlib import suppress
from importlib import import_module
from inspect import cleandoc
from io import TextIOWrapper
from pathlib import Path

import click

from runbook import report

COMMANDS: dict[str, tuple[str, str]] = {
    "init": ("setup", "Make a workspace from a runbook file or a bundled runbook."),
    "validate": ("setup", "Check a runbook file; every problem with its line."),
    "schema": ("setup", "Print the JSON Schema of runbook files, for editors."),
    "plan": ("care", "Show what an edited runbook file would change."),
    "host": ("hosts", "Bind machines to host roles; look at them; reach them."),
    "status": ("read", "Show the graph: what is done, what runs, what waits."),
    "next": ("read", "Print the next safe action and why."),
    "brief": ("read", "Print the hand-off text for whoever takes over."),
    "logs": ("logs", "Print a task's output; -f follows it."),
    "results": ("read", "Print results, times, artifacts and the loss curve."),
    "events": ("look", "Show what happened, and who did it."),
    "checkpoints": ("look", "List the checkpoints of a training run, on its host."),
    "audit": ("look", "Show what an audit found, with samples."),
    "progress": ("read", "Bring PROGRESS.md up to date, or --check it."),
    "run": ("advance", "Advance the graph until it ends or needs you."),
    "watch": ("care", "Advance the graph and stay for what comes."),
    "wait": ("advance", "Wait until nothing moves, or until a task ends."),
    "stop": ("act", "Stop a task's job and verify that nothing is left."),
    "restart": ("serving", "Stop one server and start it again, without the others."),
    "retry": ("act", "Make a failed, stale or stopped task ready again."),
    "supersede": ("act", "Give up a lost attempt for a new one."),
    "skip": ("act", "Leave a task out, with a reason."),
    "verify": ("look_again", "Run the checks of done tasks again."),
    "reconcile": ("look_again", "Look at everything that may run, again and now."),
    "gate": ("act", "List or approve tasks that wait for a person."),
    "note": ("act", "Keep a note or a decision."),
    "confirm": ("agents", "Say yes to what an agent asked for."),
    "mcp": ("agents", "Serve this workspace to a coding agent."),
    "doc": ("share", "List documents to re-read; which changed since."),
    "claim": ("share", "Keep a task, or the run, for yourself for a while."),
    "release": ("share", "Give a claim back."),
    "push": ("share", "Put the state where another machine finds it."),
    "pull": ("share", "Take a pushed state over."),
    "doctor": ("care", "Look the workspace over; exit 4 when something is wrong."),
    "completion": ("setup", "Print what makes a shell complete verbs and options."),
    "tui": ("ui", "Open the terminal UI (also: bare `runbook`)."),
}


class Verbs(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order in which one meets them."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Loads one verb; a misspelt one gets a suggestion."""
        if cmd_name not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(cmd_name, COMMANDS, 1, cutoff=0.75)
            said = f" Did you mean `{near[0]}`?" if near else ""
            ctx.fail(f"There is no verb `{cmd_name}`.{said}")
        module = import_module(f"runbook.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        take_workspace(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Help without importing a single verb."""
        del ctx
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def take_workspace(command: click.Command) -> None:
    """Lets `-w` also stand after the verb, where fingers put it; leaves its example whole."""
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            take_workspace(inner)
    if not any(isinstance(one, click.Option) and "-w" in one.opts for one in command.params):
        option = click.Option(
            ["-w", "--workspace"],
            type=click.Path(path_type=Path),
            expose_value=False,
            callback=_instead,
            help="The workspace; as before the verb.",
        )
        command.params.append(option)
        # A command that is broken across lines cannot be copied.
        text = cleandoc(command.help or "")
        command.help = text.replace("\n\nExample: ", "\n\n\b\nExample: ")


def _instead(ctx: click.Context, _option: click.Parameter, value: Path | None) -> None:
    if value is not None:
        ctx.obj = value
        report.choose(value)


@click.command(cls=Verbs, invoke_without_command=True)
@click.option(
    "-w",
    "--workspace",
    type=click.Path(path_type=Path),
    envvar="RUNBOOK_WORKSPACE",
    default=Path(),
    help="The workspace, or a folder inside it. Default: here.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=lambda ctx, _option, wanted: _tell_version(ctx) if wanted else None,
    help="Show the version, with its commit, and leave.",
)
@click.pass_context
def cli(ctx: click.Context, workspace: Path) -> None:
    """Resumable runbooks for GPU pipelines on rented machines.

    Example: runbook init demo && runbook host bind box local && runbook run
    """
    from remote.passphrases import ask_by
    from runbook.cli.terminal import ask_passphrase

    ctx.obj = workspace
    report.choose(workspace)
    ask_by(ask_passphrase)
    if ctx.invoked_subcommand is None:
        from runbook.cli.ui import open_tui

        sys.exit(open_tui(workspace))


def _tell_version(ctx: click.Context) -> None:
    from runbook.version import version_text

    report.line(f"runbook {version_text()}")
    ctx.exit()


def main() -> None:
    """Runs the command line; every known error leaves as one message and its exit code."""
    _take_streams()
    try:
        code = _outcome()
    except BrokenPipeError:  # whoever read us has enough, as `head` has; click leaves with 1 too
        code = 1
    try:
        sys.stdout.flush()
    except OSError:  # said already; the interpreter would try, and complain, once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _take_streams() -> None:
    """Something to write to, whatever we were started with, and in whatever alphabet."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: its number must not go to a database
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _outcome() -> int:
    try:
        cli.main(standalone_mode=False)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        tell_json(error.format_message(), "", error.exit_code)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        report.error("Interrupted.", "")
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 (the outermost frame: known errors, or a bug)
        return leave(error)
    return 0


def leave(error: Exception) -> int:
    """Says what went wrong and returns the exit code."""
    from runbook.errors import Exit, explain

    known = explain(error)
    if known is not None:
        report.error(known.message, known.hint)
        tell_json(known.message, known.hint, int(known.exit_code))
        return int(known.exit_code)
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        report.error(f"{error.strerror}{where}.", "")
        tell_json(f"{error.strerror}{where}.", "", 1)
        return 1
    if isinstance(error, UnicodeEncodeError) and (word := _no_text()):
        said, hint = f"{word} is no text.", "It has bytes that are not UTF-8: type it again."
        report.error(said, hint)
        tell_json(said, hint, int(Exit.USAGE))
        return int(Exit.USAGE)
    said = f"A bug in runbook: {hidden(f'{type(error).__name__}: {error}')}"
    where = f"Traceback: {_dump(error)}"
    report.error(said, where)
    tell_json(said, where, 70)
    return 70


def _no_text() -> str:
    """What was typed in another alphabet than ours, as ASCII; empty where all of it was text."""
    return next((ascii(word) for word in sys.argv if not word.isascii() and _has_bytes(word)), "")


def _has_bytes(word: str) -> bool:
    return any("\udc80" <= letter <= "\udcff" for letter in word)


def tell_json(message: str, hint: str, exit_code: int) -> None:
    """The refusal for whoever asked for JSON, unless the verb has answered already."""
    if "--json" in sys.argv and not report.answered():
        from runbook.cli.common import SCHEMA

        verb = next((word for word in sys.argv[1:] if word in COMMANDS), None)
        error = {"message": message, "hint": hint, "exit_code": exit_code}
        with suppress(OSError):  # nobody reads it; the message is on stderr
            report.json_line({"schema": SCHEMA, "verb": verb, "revision": None, "error": error})


def _dump(error: Exception) -> str:
    """Writes the traceback; the same bug finds its file of before, whatever its message says."""
    import hashlib
    import tempfile

    frames = [(one.filename, one.lineno) for one in traceback.extract_tb(error.__traceback__)]
    kind = hashlib.sha256(repr((type(error).__name__, frames)).encode()).hexdigest()[:12]
    path = Path(tempfile.gettempdir()) / f"runbook-bug-{os.getuid()}-{kind}.txt"
    text = hidden("".join(traceback.format_exception(error)))
    try:
        # Not through a link that somebody else left in the shared folder.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as refused:
        return f"{text.rstrip()}\n  (not written to {path}: {refused.strerror})"
    return str(path)


def hidden(text: str) -> str:
    """Without the secrets that this process has taken, if it has taken any."""
    secrets = sys.modules.get("runbook.secrets")
    return text if secrets is None else str(secrets.KNOWN.text(text))
