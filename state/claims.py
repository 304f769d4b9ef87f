"""Claims: a task, or the whole run, kept for one person or agent, with a token that only grows.

A claim is not held by a process, so no kernel lock proves its holder alive. When it has run out
is for each reader to judge, by its own watching (`runbook.claims`); nothing here looks at a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from state import journal
from state.errors import ClaimHeld, StateError
from state.model import Claim

if TYPE_CHECKING:
    import sqlite3

    from state.transaction import Transaction

RUN = "run"
"""The claim on everything."""


def find(tx: Transaction, subject: str) -> Claim | None:
    """Who has it, as of this transaction; None when it is free or was given back."""
    row = _row(tx, subject)
    return None if row is None or row["released_at"] else _claim(row)


def take(
    tx: Transaction,
    subject: str,
    holder: str,
    *,
    for_s: float,
    reason: str = "",
    over: int | None = None,
) -> Claim:
    """Claim it. Again by the same holder, it begins anew; of another, it is refused.

    `over` is the token of a claim that has run out or is taken over: naming it makes two that
    take over at once different.
    """
    if subject != RUN:
        tx.task(subject)
    row = _row(tx, subject)
    held = None if row is None or row["released_at"] else _claim(row)
    holder = journal.clean(holder)
    if held is not None and held.holder != holder and held.token != over:
        raise ClaimHeld(held)
    token = row["token"] + 1 if row else 1
    values = [subject, holder, token, tx.at, for_s, journal.clean(reason)]
    tx.execute(
        "INSERT INTO claim (subject, holder, token, at, for_s, reason) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (subject) DO UPDATE SET holder = excluded.holder, token = excluded.token,"
        " at = excluded.at, for_s = excluded.for_s, reason = excluded.reason, released_at = NULL",
        values,
    )
    payload: dict[str, object] = {"holder": holder, "token": token, "for_s": for_s}
    if reason:
        payload["reason"] = reason
    if held is not None and held.holder != holder:
        payload["taken_over_from"] = held.holder
    tx.event("claim.taken", subject, payload, task=None if subject == RUN else subject)
    claim = find(tx, subject)
    assert claim is not None
    return claim


def give_back(tx: Transaction, subject: str, holder: str) -> bool:
    """False when nobody had it. Another's claim is not given back."""
    held = find(tx, subject)
    if held is None:
        if subject != RUN:
            tx.task(subject)
        return False
    if held.holder != journal.clean(holder):
        raise ClaimHeld(held)
    changed = tx.execute(
        "UPDATE claim SET released_at = ? WHERE subject = ? AND token = ? AND released_at IS NULL",
        [tx.at, subject, held.token],
    ).rowcount
    if changed != 1:
        raise StateError(f"The claim on {subject} moved inside one transaction.")
    payload = {"holder": held.holder, "token": held.token}
    tx.event("claim.released", subject, payload, task=None if subject == RUN else subject)
    return True


def _row(tx: Transaction, subject: str) -> sqlite3.Row | None:
    row: sqlite3.Row | None = tx.execute(
        "SELECT * FROM claim WHERE subject = ?", [subject]
    ).fetchone()
    return row


def _claim(row: sqlite3.Row) -> Claim:
    return Claim(**{name: row[name] for name in Claim.__slots__})
