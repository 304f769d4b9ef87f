"""The errors a user of `dflash` meets: what could not be done, what was found, what to do next.

Standard library only. The command line prints message and hint and exits with `exit_code`;
anything that is not a DflashError is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_GATE = 4
EXIT_KEYS = 77  # EX_NOPERM: the keys have ended; `runbook` runs it again with new ones
EXIT_INTERRUPTED = 75  # EX_TEMPFAIL: run the same command again and it goes on


class DflashError(Exception):
    """Something the user can act on; `hint` says how."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(DflashError):
    """The arguments do not fit together."""

    exit_code = EXIT_USAGE


class InputInvalid(DflashError):
    """An input file or folder is not what the command can read."""


class GateFailed(DflashError):
    """The audit ran and the data does not pass; the report is written."""

    exit_code = EXIT_GATE


class Interrupted(DflashError):
    """Stopped by a signal with everything finished so far on disk."""

    exit_code = EXIT_INTERRUPTED
