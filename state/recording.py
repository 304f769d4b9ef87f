"""What was found, said and made: checks, artifacts, notes, hosts, facts about the workspace."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state import ids, journal
from state.errors import StateError, UnknownHost
from state.model import (
    JSON,
    Approval,
    ApprovalAbout,
    Artifact,
    CheckRun,
    HostBinding,
    HostEpoch,
    Note,
    Purpose,
    Verdict,
)
from state.reading import epoch_from
from state.transaction import Transaction

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping


class Recording(Transaction):
    """The verbs that move nothing in the graph."""

    def record_check(
        self,
        task_id: str,
        *,
        purpose: Purpose,
        name: str,
        spec: Mapping[str, JSON],
        verdict: Verdict,
        evidence: Mapping[str, JSON] | None = None,
        attempt: str | None = None,
        epoch: str | None = None,
    ) -> CheckRun:
        """Keep a verdict and what it rests on."""
        self.task(task_id)
        row = {
            "id": ids.ulid(self._moment),
            "task": task_id,
            "attempt": attempt,
            "purpose": purpose,
            "name": name,
            "spec": journal.canonical(dict(spec)),
            "verdict": verdict,
            "evidence": journal.canonical(dict(evidence or {})),
            "at": self.at,
            "epoch": epoch,
        }
        self._insert("check_run", row)
        plain = {"spec": json.loads(str(row["spec"])), "evidence": json.loads(str(row["evidence"]))}
        payload = {
            "check": row["id"],
            **{key: row[key] for key in ("attempt", "purpose", "name", "verdict", "epoch")},
            **plain,
        }
        self.event("check.recorded", attempt or task_id, payload, task=task_id)
        return CheckRun(**{**row, **plain})

    def record_artifact(
        self, task_id: str, *, uri: str, size: int, sha256: str, attempt: str | None = None
    ) -> Artifact:
        """Remember where a result lies and what its bytes are."""
        self.task(task_id)
        row: dict[str, JSON] = {
            "id": ids.ulid(self._moment),
            "task": task_id,
            "attempt": attempt,
            "uri": journal.clean(uri),
            "size": size,
            "sha256": sha256,
            "at": self.at,
        }
        self._insert("artifact", row)
        payload = {"artifact": row["id"], "uri": row["uri"], "size": size, "sha256": sha256}
        payload["attempt"] = attempt
        self.event("artifact.recorded", row["uri"], payload, task=task_id)
        return Artifact(**row)

    def add_note(
        self,
        text: str,
        *,
        task: str | None = None,
        decision: bool = False,
        actor: str | None = None,
    ) -> Note:
        """A person's or an agent's words; a decision is shown to everybody who takes over."""
        if task is not None:
            self.task(task)
        if not text.strip():
            raise StateError("The note is empty.", "Give its text.")
        row: dict[str, JSON] = {
            "id": ids.ulid(self._moment),
            "at": self.at,
            "actor": journal.clean(actor) if actor else self._actor,
            "task": task,
            "text": journal.clean(text),
            "decision": decision,
        }
        self._insert("note", row)
        payload = {"note": row["id"], "text": row["text"], "decision": decision}
        kind = "decision.made" if decision else "note.added"
        self.event(kind, task or "workspace", payload, task=task)
        return Note(**row)

    def approve(self, task_id: str, *, about: ApprovalAbout, reason: str) -> Approval:
        """Keep a person's yes to a task as it is defined now."""
        task = self.task(task_id)
        latest = self.latest_attempt(task_id)
        row: dict[str, JSON] = {
            "id": ids.ulid(self._moment),
            "at": self.at,
            "actor": self._actor,
            "task": task_id,
            "about": about,
            "definition_hash": task.definition_hash,
            "attempts": latest.number if latest else 0,
            "reason": journal.clean(reason),
        }
        self._insert("approval", row)
        payload = {name: row[name] for name in ("about", "definition_hash", "attempts", "reason")}
        self.event("task.approved", row["id"], payload, task=task_id)
        return Approval(**row)

    def bind_host(self, host: HostBinding) -> None:
        """Put a machine behind a role, or replace it. The machine before is no longer paid for."""
        row = {name: getattr(host, name) for name in HostBinding.__slots__}
        row["facts"] = journal.canonical(dict(host.facts))
        self._insert("host", row, verb="INSERT OR REPLACE")
        payload = {**row, "facts": json.loads(row["facts"])}
        del payload["role"]
        began = self._rent(host)
        self.event("host.bound", host.role, payload | ({"rental": began} if began else {}))

    def _rent(self, host: HostBinding) -> str | None:
        """The name of a new rental; None while the same machine goes on at the same price."""
        machine, price = journal.clean(host.machine), host.usd_per_hour
        known = self._conn.execute(
            "SELECT machine, usd_per_hour FROM rental WHERE role = ? AND until IS NULL", [host.role]
        ).fetchone()
        if known is not None and tuple(known) == (machine, price):
            return None
        query = "UPDATE rental SET until = ? WHERE role = ? AND until IS NULL"
        self._conn.execute(query, [self.at, host.role])
        name = ids.ulid(self._moment)
        row = {"id": name, "role": host.role, "machine": machine, "usd_per_hour": price}
        self._insert("rental", {**row, "since": self.at})
        return name

    def end_rental(self, role: str) -> None:
        """The machine behind the role is given back, or plays it no more."""
        query = "SELECT id FROM rental WHERE role = ? AND until IS NULL"
        for (name,) in self._conn.execute(query, [role]).fetchall():
            self._conn.execute("UPDATE rental SET until = ? WHERE id = ?", [self.at, name])
            self.event("rental.ended", name, {"role": role})

    def unbind_host(self, role: str) -> None:
        """No machine plays the role any more."""
        self._host(role)
        self.end_rental(role)
        self._conn.execute("DELETE FROM host WHERE role = ?", [role])
        self.event("host.unbound", role, {})

    def last_epoch(self, role: str) -> HostEpoch | None:
        """The boot of a machine that the role met last."""
        row = self._conn.execute(
            "SELECT * FROM host_epoch WHERE role = ? ORDER BY seq DESC LIMIT 1", [role]
        ).fetchone()
        return epoch_from(row) if row else None

    def seen_host(
        self,
        role: str,
        *,
        epoch: str | None,
        facts: Mapping[str, JSON] | None = None,
        identity: Mapping[str, JSON] | None = None,
    ) -> None:
        """It answered. Only news make an event: polling must not move the revision."""
        row = self._host(role)
        change: dict[str, JSON] = {}
        if epoch is not None and epoch != row["epoch"]:
            change["epoch"] = epoch
        text = row["facts"] if facts is None else journal.canonical(dict(facts))
        if text != row["facts"]:
            change["facts"] = json.loads(text)
        if row["unreachable_since"] is not None:
            change["unreachable_since"] = None
        self._conn.execute(
            "UPDATE host SET epoch = ?, facts = ?, seen_at = ?, unreachable_since = NULL"
            " WHERE role = ?",
            [change.get("epoch", row["epoch"]), text, self.at, role],
        )
        if "epoch" in change:
            change["was_epoch"] = row["epoch"]
            proof = journal.canonical(dict(identity or {}))
            if identity:
                change["identity"] = json.loads(proof)
            met = {"role": role, "epoch": epoch, "identity": proof, "at": self.at}
            self._insert("host_epoch", met)
        if change:
            self.event("host.seen", role, change)

    def set_unreachable(self, role: str, flag: bool = True) -> None:
        """It did not answer. That is no verdict about what runs on it."""
        row = self._host(role)
        if flag != (row["unreachable_since"] is not None):
            since = self.at if flag else None
            self._conn.execute(
                "UPDATE host SET unreachable_since = ? WHERE role = ?", [since, role]
            )
            self.event("host.unreachable" if flag else "host.reachable", role, {})

    def set_meta(self, key: str, value: str, *, unless: str | None = None) -> None:
        """A named fact about the workspace (an approved digest, a budget).

        `unless` is what its absence means: it is not said anew.
        """
        value = journal.clean(value)
        known = self._meta(key)
        if (unless if known is None else known) != value:
            self._put_meta(key, value)
            self.event("meta.set", key, {"value": value})

    def _host(self, role: str) -> sqlite3.Row:
        row: sqlite3.Row | None = self._conn.execute(
            "SELECT * FROM host WHERE role = ?", [role]
        ).fetchone()
        if row is None:
            raise UnknownHost(role)
        return row
