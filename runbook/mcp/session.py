"""How a tool reaches the workspace: one client a call, and errors as an agent reads them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mcp.server.mcpserver.exceptions import ToolError

from runbook.errors import Exit, explain
from runbook.reader import Reader
from runbook.report import at
from runbook.service import Service

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Session:
    """One agent at one workspace."""

    workspace: Path
    actor: str

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """A client that only looks."""
        with told(self.workspace), Reader.open(self.workspace, actor=self.actor) as reader:
            reader.is_agent = True  # whatever it calls itself
            yield reader

    @contextmanager
    def acting(self, expect_rev: int | None = None) -> Iterator[Service]:
        """A client that may write."""
        with (
            told(self.workspace),
            Service.open(self.workspace, actor=self.actor, expect_rev=expect_rev) as service,
        ):
            service.is_agent = True
            yield service


@contextmanager
def told(workspace: Path) -> Iterator[None]:
    """Known errors become tool errors: what, the next step, and the exit code's name.

    What a person is to do is told as a command that works wherever they stand.
    """
    try:
        yield
    except Exception as error:
        known = explain(error)
        if known is None and isinstance(error, OSError) and error.strerror:
            where = f": {error.filename}" if error.filename else ""
            raise ToolError(f"{error.strerror}{where}.") from error
        if known is None:
            raise
        name = known.exit_code.name.lower()
        theirs = known.exit_code is Exit.NEEDS_APPROVAL
        hint = at(workspace, known.hint) if theirs else known.hint
        raise ToolError(f"{known.message} {hint} [{name}]".replace("  ", " ")) from error
