"""`push`: our state into a store, if what lies there is our own past."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from runbook.errors import Exit, RunbookError
from runbook.sharing.contents import collect, load, notes_of, receive
from runbook.sharing.place import Found, Moved, Place, SnapshotStore, open_place, remember
from runbook.sharing.scratch import scratch
from state.export import compare, has_event
from state.mirror import write_file
from state.snapshot_file import SnapshotHead, read_head

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.sharing.contents import Outgoing
    from runbook.workspace import Workspace

NOTES_BASE = "notes.base.md"
"""PROGRESS.md as it was when this machine and the store last had the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """What came of it."""

    where: str
    revision: int
    bytes: int
    written: bool
    """False when the store had it already, or with `--dry-run`."""
    replaced: int | None
    """The revision that lay there before."""
    kept: str = ""
    """Where the replaced state of another history was put."""


def push(
    workspace: Workspace, place: Place, *, author: str, over: int | None, dry_run: bool
) -> Pushed:
    """Write our state to the store.

    Args:
        over: the revision of another history that a person decided to replace; it is kept beside.
        dry_run: compare only.

    Raises:
        RunbookError: the store has what we do not know of (exit 6), or cannot be used.
    """
    store = open_place(place)
    with scratch("push") as folder:
        ours = collect(workspace, author=author, folder=folder)
        head, data = ours.head, ours.data
        found = store.read()
        there = read_head(found.data, store.label) if found else None
        kept = ""
        if there is not None and found is not None:
            if _has_all(there, head):
                if not dry_run:
                    _settled(workspace, place, ours)
                return _pushed(store, head, data, there, written=False)
            kept = _judge(workspace, store, found, there, over, folder, dry_run=dry_run)
        elif over is not None:
            raise RunbookError(f"{store.label}: nothing is there to replace.", hint="Omit --over.")
        if not dry_run:
            store.prove_conditions()
            try:
                store.write(data, over=found.tag if found else None)
            except Moved:
                _after_refusal(workspace, store, head, data, folder)
            _settled(workspace, place, ours)
    return _pushed(store, head, data, there, written=not dry_run, kept=kept)


def _has_all(there: SnapshotHead, ours: SnapshotHead) -> bool:
    def state(head: SnapshotHead) -> tuple[str, int, str, str]:
        return head.workspace_id, head.revision, head.event_hash, head.notes_sha256

    return state(there) == state(ours)


def _pushed(
    store: SnapshotStore,
    head: SnapshotHead,
    data: bytes,
    there: SnapshotHead | None,
    *,
    written: bool,
    kept: str = "",
) -> Pushed:
    return Pushed(
        where=store.label,
        revision=head.revision,
        bytes=len(data),
        written=written,
        replaced=there.revision if there else None,
        kept=kept,
    )


def _settled(workspace: Workspace, place: Place, ours: Outgoing) -> None:
    """Remember what both sides have now. Lost by a kill, it only costs one more comparison."""
    remember(workspace, place)
    if ours.progress is not None:
        write_file(workspace.private / NOTES_BASE, ours.progress)


def _judge(
    workspace: Workspace,
    store: SnapshotStore,
    found: Found,
    there: SnapshotHead,
    over: int | None,
    folder: Path,
    *,
    dry_run: bool,
) -> str:
    """Refuse what is not our past; where the replaced state is kept, if a person said so."""
    incoming = receive(found.data, store.label, folder)
    who = f"revision {there.revision} by {there.author}, {age(found.age_s)}"
    mine = folder / "state.db"
    if there.workspace_id != load(mine).meta.workspace_id:
        raise RunbookError(
            f"{store.label} has another workspace: {there.title!r} ({there.workspace_id}), {who}.",
            hint="Name another address; nothing was pushed.",
            exit_code=Exit.CONFLICT,
        )
    ours = compare(mine, incoming.database)
    if ours.relation in ("same", "ahead"):
        if not _notes_known(workspace, there):
            raise RunbookError(
                f"{store.label} has notes in PROGRESS.md that are not here: {who}.",
                hint=f"Take them over first: runbook pull {store.label}",
                exit_code=Exit.CONFLICT,
            )
        return ""
    if ours.relation == "behind":
        raise RunbookError(
            f"{store.label} has a newer state: {who}; here is revision {ours.ours}. "
            "Nothing was pushed.",
            hint=f"Take it over first: runbook pull {store.label}",
            exit_code=Exit.CONFLICT,
        )
    if over != there.revision:
        raise diverged(store.label, who, ours.ours, ours.common, there.revision)
    neighbour = store.beside(f"r{there.revision}-{there.event_hash[:8]}")
    if not dry_run:
        store.prove_conditions()
        with suppress(Moved):  # it was kept before
            neighbour.write(found.data, over=None)
    return neighbour.label


def diverged(label: str, who: str, ours: int, common: int, theirs: int) -> RunbookError:
    """Two pasts. Which one goes on is for a person; nothing is merged."""
    return RunbookError(
        f"Two states went apart after revision {common}: {label} has {who}; here is revision "
        f"{ours}. Nothing was overwritten.",
        hint=f"Decide which one goes on. Theirs: runbook pull {label} --dir ANOTHER-FOLDER. "
        f"This one: runbook push {label} --over {theirs} (theirs is kept beside it).",
        exit_code=Exit.CONFLICT,
    )


def _notes_known(workspace: Workspace, there: SnapshotHead) -> bool:
    """Whether what people wrote there is what we took or gave last, or has now."""
    known = [workspace.private / NOTES_BASE, workspace.progress_file]
    digests = {sha256(notes_of(path.read_bytes())).hexdigest() for path in known if path.is_file()}
    return there.notes_sha256 in digests


def _after_refusal(
    workspace: Workspace, store: SnapshotStore, head: SnapshotHead, data: bytes, folder: Path
) -> None:
    """The condition failed: by our own write whose answer was lost, or by somebody else's."""
    found = store.read()
    if found is None:
        raise RunbookError(
            f"{store.label} was deleted while we wrote.",
            hint="Push again.",
            exit_code=Exit.CONFLICT,
        )
    if found.data == data:
        return
    there = read_head(found.data, store.label)
    if has_event(workspace.database, there.revision, there.event_hash):
        raise RunbookError(
            f"{store.label} was written by {there.author} at the same moment "
            f"(revision {there.revision}); ours is {head.revision}.",
            hint="Push again.",
            exit_code=Exit.CONFLICT,
        )
    _judge(workspace, store, found, there, None, folder, dry_run=True)


def age(seconds: float | None) -> str:
    """How long ago, in words."""
    if seconds is None:
        return "at a time unknown"
    for limit, unit, scale in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / scale:.0f} {unit} ago"
    return f"{seconds / 86400:.0f} days ago"
