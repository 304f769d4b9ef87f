"""`pull`: a state from a store into a workspace, new or behind. Nothing is merged but notes."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Literal, TypeAlias

from runbook.errors import Exit, RunbookError
from runbook.reader import ENGINE, FILE_DIGEST
from runbook.sharing import contents as parts
from runbook.sharing.file_store import alone
from runbook.sharing.place import Place, open_place, remember
from runbook.sharing.push import NOTES_BASE, age, diverged
from runbook.sharing.scratch import scratch
from runbook.workspace import Workspace
from state import open_store
from state.export import compare, copy_database, fast_forward
from state.merge import common, merge_notes
from state.mirror import write_file
from state.regions import MarkersBroken, take_apart
from state.snapshot_file import DATABASE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from runbook.sharing.contents import Contents, Incoming
    from state import Snapshot

Change: TypeAlias = Literal["made", "forwarded", "same", "ahead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a person is asked to agree to, before anything is used."""

    where: str
    title: str
    revision: int
    author: str
    age: str
    contents: Contents
    """Only what this machine has not seen before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """What came of it."""

    where: str
    workspace: str
    change: Change
    revision: int
    author: str
    kept: tuple[str, ...] = ()
    """Files of ours that were left as they are, and why."""


def pull(
    place: Place,
    folder: Path,
    *,
    actor: str,
    agree: Callable[[Offer], bool],
    dry_run: bool = False,
) -> Pulled:
    """Bring the workspace in `folder` to the state in the store; make it if there is none.

    Args:
        agree: asked before commands and host keys that are new here can be used.

    Raises:
        RunbookError: not agreed (exit 7), diverged or another workspace (exit 6).
    """
    store = open_place(place)
    found = store.read()
    if found is None:
        raise RunbookError(f"{store.label}: there is no state.", hint="Push one there first.")
    workspace = Workspace(folder.absolute())
    with scratch("pull") as inner:
        incoming = parts.receive(found.data, store.label, inner)
        who = f"revision {incoming.head.revision} by {incoming.head.author}, {age(found.age_s)}"
        exists = workspace.database.exists()
        ours = _ours(workspace, incoming, store.label, who) if exists else None
        change: Change = "made" if ours is None else ours[1]
        result = Pulled(
            where=store.label,
            workspace=str(workspace.root),
            change=change,
            revision=incoming.head.revision,
            author=incoming.head.author,
        )
        if change == "ahead":
            return replace(result, revision=ours[0].snapshot.revision if ours else 0)
        offer = _offer(store.label, incoming, age(found.age_s), ours[0] if ours else None)
        if offer is not None and not agree(offer):
            raise RunbookError(
                "Not agreed: nothing was taken over.",
                hint=f"Look at the commands and host keys above; then add "
                f"--trust {offer.contents.digest}",
                exit_code=Exit.NEEDS_APPROVAL,
            )
        if dry_run:
            return result
        if ours is None:
            kept = _make(workspace, incoming)
        else:
            kept = _forward(workspace, incoming, ours[0], actor=actor, move=change == "forwarded")
        remember(workspace, place)
        return replace(result, kept=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ours:
    """The state that is here."""

    snapshot: Snapshot
    edited: bool


def _ours(workspace: Workspace, incoming: Incoming, label: str, who: str) -> tuple[_Ours, Change]:
    with open_store(workspace.database, actor="pull") as store:
        snapshot = store.snapshot()
    if snapshot.meta.workspace_id != incoming.head.workspace_id:
        raise RunbookError(
            f"{workspace.root} is another workspace ({snapshot.meta.title!r}); {label} has "
            f"{incoming.head.title!r}, {who}. Nothing was overwritten.",
            hint="Name another folder with --dir.",
            exit_code=Exit.CONFLICT,
        )
    compared = compare(workspace.database, incoming.database)
    if compared.relation == "diverged":
        raise diverged(label, who, compared.ours, compared.common, compared.theirs)
    change: Change = {"behind": "forwarded", "same": "same", "ahead": "ahead"}[compared.relation]  # type: ignore[assignment]
    with suppress(OSError):
        text = workspace.runbook_file.read_bytes()
        known = snapshot.meta.extra.get(FILE_DIGEST)
        return _Ours(snapshot=snapshot, edited=sha256(text).hexdigest() != known), change
    return _Ours(snapshot=snapshot, edited=False), change


def _offer(label: str, incoming: Incoming, when: str, ours: _Ours | None) -> Offer | None:
    """What is new here and can act; None when nothing is."""
    theirs = parts.contents(incoming.snapshot)
    mine = parts.contents(ours.snapshot) if ours else None
    if mine is not None and mine.digest == theirs.digest:
        return None
    return Offer(
        where=label,
        title=incoming.head.title,
        revision=incoming.head.revision,
        author=incoming.head.author,
        age=when,
        contents=parts.news(theirs, mine),
    )


def _make(workspace: Workspace, incoming: Incoming) -> tuple[str, ...]:
    """The texts first, the database last and by a rename: before it, there is no workspace."""
    runbook = incoming.files.get(parts.RUNBOOK)
    own = workspace.runbook_file.read_bytes() if workspace.runbook_file.exists() else runbook
    if own != runbook:
        raise RunbookError(
            f"{workspace.root} has another runbook.yaml; nothing was overwritten.",
            hint="Name an empty folder with --dir.",
            exit_code=Exit.CONFLICT,
        )
    workspace.private.mkdir(parents=True, exist_ok=True)
    kept = []
    if runbook is not None:
        write_file(workspace.runbook_file, runbook)
    progress = incoming.files.get(parts.PROGRESS)
    if progress is not None and not workspace.progress_file.exists():
        write_file(workspace.progress_file, progress)
    elif progress is not None:
        kept.append("PROGRESS.md: one was here already")
    for name in (parts.PARAMS, parts.BASE):
        if name in incoming.files:
            write_file(workspace.private / name, incoming.files[name])
    if progress is not None:
        write_file(workspace.private / NOTES_BASE, progress)
    aside = workspace.private / f".{DATABASE}.{os.getpid()}.partial"
    try:
        copy_database(incoming.database, aside)
        with alone(workspace.private):
            if workspace.database.exists():
                raise RunbookError(
                    f"{workspace.root} was made by somebody else at the same moment.",
                    hint="Look at it: runbook status. Nothing of it was overwritten.",
                    exit_code=Exit.CONFLICT,
                )
            aside.replace(workspace.database)
    finally:
        aside.unlink(missing_ok=True)
    return tuple(kept)


def _forward(
    workspace: Workspace, incoming: Incoming, ours: _Ours, *, actor: str, move: bool
) -> tuple[str, ...]:
    """Notes first: whoever dies in between has them twice, never not at all."""
    if move:
        with open_store(workspace.database, actor=actor) as store:
            if store.is_live(ENGINE):
                raise RunbookError(
                    "Somebody here advances the graph right now; nothing was taken over.",
                    hint="End that `runbook run` or `watch` first; the jobs go on.",
                    exit_code=Exit.CONFLICT,
                )
    kept = []
    text = incoming.files.get(parts.RUNBOOK)
    problem = _merge_progress(workspace, incoming)
    if problem:
        kept.append(problem)
    if move:
        fast_forward(workspace.database, incoming.database, expect=ours.snapshot.revision)
    if text is not None and move:
        if ours.edited:
            kept.append("runbook.yaml: it was edited here; see `runbook plan`")
        else:
            write_file(workspace.runbook_file, text)
            if parts.PARAMS in incoming.files:
                write_file(workspace.private / parts.PARAMS, incoming.files[parts.PARAMS])
    return tuple(kept)


def _merge_progress(workspace: Workspace, incoming: Incoming) -> str:
    """People's notes of both sides, three ways; what could not be told apart, in words."""
    theirs = incoming.files.get(parts.PROGRESS)
    if theirs is None:
        return ""
    base = workspace.private / NOTES_BASE
    try:
        there = take_apart(theirs.decode("utf-8-sig"))
        here = take_apart(workspace.progress_file.read_text(encoding="utf-8-sig"))
        before = take_apart(base.read_text(encoding="utf-8-sig")) if base.exists() else None
    except FileNotFoundError:
        write_file(workspace.progress_file, theirs)
        write_file(base, theirs)
        return ""
    except (MarkersBroken, UnicodeDecodeError) as error:
        return f"PROGRESS.md: its notes were not merged ({error})"
    labels = ("here", incoming.head.author)

    def merged_part(once: str | None, mine: str, yours: str) -> str:
        ancestor = common(mine, yours) if once is None else once
        return merge_notes(ancestor, mine, yours, labels=labels).text

    merged = replace(
        here,
        before=merged_part(before.before if before else None, here.before, there.before),
        after=merged_part(before.after if before else None, here.after, there.after),
    )
    if merged.text() != here.text():
        write_file(workspace.progress_file, merged.text().encode())
    write_file(base, theirs)
    return ""
