"""Adds one .pth file to the wheel: a start hook has no other place in the packaging metadata."""

from __future__ import annotations

from pathlib import Path

from setuptools import setup  # type: ignore[import-untyped,unused-ignore]
from setuptools.command.build_py import (  # type: ignore[import-untyped,unused-ignore]
    build_py,
)

START_HOOK = "runbook_torchvision_ops.pth"


class BuildWithStartHook(build_py):  # type: ignore[misc,unused-ignore]
    """Copies the hook next to the modules, so that pip records it and removes it again."""

    def run(self) -> None:
        super().run()
        target = Path(self.build_lib)
        target.mkdir(parents=True, exist_ok=True)
        self.copy_file(START_HOOK, str(target / START_HOOK))

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        outputs: list[str] = super().get_outputs(include_bytecode)
        return [*outputs, str(Path(self.build_lib) / START_HOOK)]


setup(cmdclass={"build_py": BuildWithStartHook})
