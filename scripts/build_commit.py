"""Build hook: puts the commit that a wheel or sdist was built from into `runbook/commit.txt`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "runbook/commit.txt"


class CommitHook(BuildHookInterface):
    """An sdist brings the file along; without git, and in an editable install, there is none."""

    written = ""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the file to what is built."""
        root = Path(self.root)
        if version == "editable" or (root / NAME).exists():
            return
        sys.path.insert(0, str(root))
        from runbook.version import of_checkout

        commit = of_checkout(root)
        if commit:
            with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
                file.write(f"{commit}\n")
            self.written = file.name
            build_data["force_include"][file.name] = NAME

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Leaves nothing behind."""
        del version, build_data, artifact_path
        if self.written:
            Path(self.written).unlink(missing_ok=True)
