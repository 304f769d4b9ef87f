"""`python -m runbook` and the console script."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line."""
    try:
        from runbook.cli.main import main as run

        run()
    except KeyboardInterrupt:  # before the command line was there to say so, or after it was done
        sys.exit(130)


if __name__ == "__main__":
    main()
