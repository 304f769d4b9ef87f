"""Verbs for servers."""

from __future__ import annotations

import json

from runbook.engine.stopping import UP, live_attempt
from runbook.errors import RunbookError
from runbook.reasons import DRAIN, RESTARTED_BY
from runbook.verbs.base import wrong_state
from runbook.verbs.confirming import ConfirmVerbs
from state import AttemptState, Task, TaskKind, TaskState

DRAIN_S = 60.0
"""How long a server may take over what it was asked before, unless said otherwise."""


class ServingVerbs(ConfirmVerbs):
    """Restarting one server of many."""

    def restart(self, task_id: str, *, drain_s: float = DRAIN_S, reason: str = "") -> Task:
        """Has one server stopped and started again; no other one is touched.

        Only the wish is recorded here: whoever advances the graph lets it answer what it has, stops
        it with verification, and starts a new attempt.

        Args:
            drain_s: for so long it gets no new requests and answers what it has; 0: at once. One
                that is starting or unhealthy has nothing to wait for.
            reason: why; an agent's is shown to the person who confirms it.

        Raises:
            RunbookError: it is no server, or none that is up.
        """
        snapshot = self.snapshot()
        task = snapshot.task(task_id)
        attempt = live_attempt(snapshot, task)
        if task.kind is not TaskKind.SERVICE:
            raise RunbookError(
                f"`{task_id}` is no server: its step is `{task.step}`.",
                hint="Stop it with `runbook stop`, begin again with `runbook retry`.",
            )
        if attempt is None or task.state not in UP or attempt.state is AttemptState.STOPPING:
            raise wrong_state(task, "restart", set(UP))
        self._person_decides("restart", task_id, reason)
        self._require_free(task_id)
        limit = drain_s if task.state is TaskState.SERVING else 0.0
        for_it = f"; {limit:g} s at most for what it has been asked" if limit else ""
        said = f"{RESTARTED_BY}{self.store.actor}{for_it}"
        if self.dry_run:
            self.would += [f"let {task_id} drain for {limit:g} s, stop it, verify, start it again"]
        with self._write() as tx:
            kept = json.dumps({"attempt": attempt.id, "limit_s": limit})
            tx.set_meta(DRAIN + task_id, kept)
            moved = tx.move_task(task_id, TaskState.DRAINING, expect={task.state}, reason=said)
        self.write_progress()
        return moved
