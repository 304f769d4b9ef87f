"""What is kept by reference: documents to re-read, and the names of secrets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from state import journal
from state.errors import StateError
from state.model import JSON, Document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from state.transaction import Transaction


def add_document(tx: Transaction, *, path: str, title: str, sha256: str, size: int) -> bool:
    """List a text, or say that its present content was read; False when nothing is new."""
    row = tx.execute("SELECT title, sha256 FROM document WHERE path = ?", [path]).fetchone()
    title = journal.clean(title) or (row["title"] if row else "")
    if row and (row["title"], row["sha256"]) == (title, sha256):
        return False
    payload: dict[str, JSON] = {"title": title, "sha256": sha256, "size": size}
    tx.execute(
        "INSERT OR REPLACE INTO document (path, title, sha256, size, at, actor)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [journal.clean(path), title, sha256, size, tx.at, tx.actor],
    )
    tx.event("document.added", journal.clean(path), payload)
    return True


def remove_document(tx: Transaction, path: str) -> Document:
    """No longer to be read."""
    row = tx.execute("SELECT * FROM document WHERE path = ?", [path]).fetchone()
    if row is None:
        raise StateError(f"{path} is not listed.", "`runbook doc list` shows what is.")
    tx.execute("DELETE FROM document WHERE path = ?", [path])
    tx.event("document.removed", path, {})
    return Document(**dict(row))


def declare_secrets(tx: Transaction, sources: Mapping[str, Mapping[str, JSON]]) -> None:
    """Take over which secrets a runbook names and where each comes from."""
    known = {
        row["name"]: json.loads(row["source"])
        for row in tx.execute("SELECT name, source FROM secret", [])
    }
    for name, source in sources.items():
        if known.get(name) != dict(source):
            text = journal.canonical(dict(source))
            tx.execute(
                "INSERT INTO secret (name, source) VALUES (?, ?)"
                " ON CONFLICT (name) DO UPDATE SET source = excluded.source",
                [name, text],
            )
            tx.event("secret.declared", name, {"source": json.loads(text)})
    for name in known.keys() - sources.keys():
        tx.execute("DELETE FROM secret WHERE name = ?", [name])
        tx.event("secret.removed", name, {})


def saw_secret(tx: Transaction, name: str, fingerprint: str) -> None:
    """The value that was handed out has this fingerprint now."""
    tx.execute(
        "UPDATE secret SET fingerprint = ?, seen_at = ? WHERE name = ?", [fingerprint, tx.at, name]
    )
    tx.event("secret.seen", name, {"fingerprint": fingerprint})
