"""Where the peers' packages are: `make oracles` puts them there."""

from __future__ import annotations

import os

import pytest


def oracle_python() -> str:
    """An interpreter that has them; its absence fails in CI and is a loud skip elsewhere."""
    found = os.environ.get("DFLASH_ORACLE_PYTHON")
    if found:
        return found
    problem = "DFLASH_ORACLE_PYTHON names no interpreter with the peers' packages (make oracles)"
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)
