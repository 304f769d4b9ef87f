"""Every verb once. The CLI, the TUI and an MCP server are fronts over this class."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TYPE_CHECKING, Self

from runbook.reader import FILE_DIGEST
from runbook.verbs.base import ignore
from runbook.verbs.checking import CheckVerbs
from runbook.verbs.data import DataVerbs
from runbook.verbs.deciding import DecisionVerbs
from runbook.verbs.hosts import HostVerbs
from runbook.verbs.logs import LogVerbs
from runbook.verbs.running import RunVerbs
from runbook.verbs.serving import ServingVerbs
from runbook.verbs.sharing import SharingVerbs
from runbook.workspace import Workspace, default_actor
from state import LoadReport, open_store
from state.references import declare_secrets

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.plan import Runbook

__all__ = ["Service", "ignore"]


class Service(
    HostVerbs, RunVerbs, ServingVerbs, DecisionVerbs, CheckVerbs, SharingVerbs, DataVerbs, LogVerbs
):
    """One client of one workspace. Not shared between threads that act at the same time."""

    @classmethod
    def create(
        cls,
        folder: Path,
        runbook: Runbook,
        *,
        actor: str | None = None,
        expect_rev: int | None = None,
    ) -> Self:
        """Makes (or finds) the workspace in `folder` and loads the runbook into it."""
        workspace = Workspace(folder.absolute())
        workspace.private.mkdir(parents=True, exist_ok=True)
        service = cls(workspace, open_store(workspace.database, actor=actor or default_actor()))
        service.expect_rev = expect_rev
        service.load(runbook)
        return service

    def load(self, runbook: Runbook) -> LoadReport:
        """Takes over a runbook file. Done work is never run again by this: it turns stale."""
        self._require_free()
        with self._write() as tx:
            report = tx.load_runbook(
                path=str(runbook.path),
                text=runbook.text,
                digest=runbook.digest,
                name=runbook.name,
                title=runbook.title,
                goal=runbook.goal,
                tasks=runbook.task_defs(),
            )
            declare_secrets(tx, runbook.secrets)
            tx.set_meta(FILE_DIGEST, sha256(runbook.text.encode()).hexdigest())
            tx.set_meta("phases", json.dumps(dict(runbook.phases)))
            tx.set_meta("params", json.dumps(dict(runbook.params), sort_keys=True))
            tx.set_meta("roles", json.dumps(dict(runbook.hosts)))
            settings = {"limits": runbook.limits.values(), "budget": runbook.budget.limits()}
            for name, values in settings.items():
                tx.set_meta(name, json.dumps(values, sort_keys=True), unless="{}")
        self.write_progress()
        return report
