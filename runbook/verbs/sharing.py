"""Verbs for more than one person or machine: claims, documents to re-read, push."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from runbook.claims import ANYWAY_S, live_claims
from runbook.errors import RunbookError
from runbook.verbs.confirming import ConfirmVerbs
from state import Document, claims, references

if TYPE_CHECKING:
    from runbook.sharing.place import Place
    from runbook.sharing.push import Pushed
    from state import Claim


class SharingVerbs(ConfirmVerbs):
    """Who has what, what to read, and the state in a place that others reach."""

    def push(self, place: Place, *, over: int | None = None, dry_run: bool = False) -> Pushed:
        """Puts the state where another machine finds it. Raises RunbookError when stale."""
        from runbook.sharing.push import push

        self._compare_revision()
        if over is not None:
            self._only_a_person("put a state in the place of another one")
        if not dry_run:
            self.write_progress()
        return push(self.workspace, place, author=self.store.actor, over=over, dry_run=dry_run)

    def claim(
        self,
        subject: str,
        *,
        for_s: float = ANYWAY_S,
        reason: str = "",
        take_over: bool = False,
    ) -> Claim:
        """Keeps a task, or the whole `run`, for this actor; again, it begins anew.

        A claim that has run out is simply replaced. One that holds is taken over only by somebody
        who says why.

        Raises:
            ClaimHeld: somebody else has it.
        """
        if take_over:
            self._only_a_person("take claims of others over")
        if take_over and not reason.strip():
            raise RunbookError("Taking over needs a reason.", hint='Add --reason "...".')
        snapshot = self.snapshot()
        held = next((c for c in snapshot.claims if c.subject == subject), None)
        live = live_claims(self.workspace, snapshot)
        over = held.token if held and (take_over or subject not in live) else None
        with self._write() as tx:
            claim = claims.take(
                tx, subject, self.store.actor, for_s=for_s, reason=reason, over=over
            )
        self._watch_claims()
        self.write_progress()
        return claim

    def release(self, subject: str) -> bool:
        """Gives a claim back; False when nobody had it."""
        with self._write() as tx:
            given = claims.give_back(tx, subject, self.store.actor)
        if given:
            self.write_progress()
        return given

    def _watch_claims(self) -> None:
        live_claims(self.workspace, self.snapshot())

    def add_document(self, path: str, *, title: str = "") -> Document:
        """Lists a text that whoever takes over must read; again, its present content counts."""
        name, file = self._document(path)
        try:
            data = file.read_bytes()
        except OSError as error:
            raise RunbookError(
                f"{path} cannot be read: {error.strerror}.", hint="Name a file that is there."
            ) from error
        digest = sha256(data).hexdigest()
        with self._write() as tx:
            references.add_document(tx, path=name, title=title, sha256=digest, size=len(data))
        self.write_progress()
        found = {document.path: document for document in self.snapshot().documents}
        return found.get(name) or Document(
            path=name,
            title=title,
            sha256=digest,
            size=len(data),
            at="",
            actor=self.store.actor,
        )

    def remove_document(self, path: str) -> None:
        """It need not be read any more."""
        with self._write() as tx:
            references.remove_document(tx, self._document(path)[0])
        self.write_progress()

    def _document(self, path: str) -> tuple[str, Path]:
        """The name under which it is listed, relative to the workspace where it lies in it."""
        root = self.workspace.root.resolve()
        file = Path(path) if Path(path).is_absolute() else Path.cwd() / path
        if not file.exists() and not Path(path).is_absolute():
            file = root / path
        file = file.resolve()
        inside = file.is_relative_to(root)
        return (file.relative_to(root).as_posix() if inside else str(file)), file
