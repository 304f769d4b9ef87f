"""`python -m runbook` and the console script."""

from __future__ import annotations


def main() -> None:
    """Runs the command line."""
    from runbook.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
