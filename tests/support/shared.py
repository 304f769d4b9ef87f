"""Two workspaces of one graph, as two operators have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runbook.service import Service
from runbook.sharing.pull import Offer, Pulled, pull

if TYPE_CHECKING:
    from pathlib import Path

    from runbook.sharing.place import Place

TASKS = """\
  one:
    title: One
    phase: one
    step: shell
    with: {sh: "echo one >> ${host.work}/starts"}
  two:
    title: Two
    phase: one
    needs: [one]
    step: shell
    with: {sh: "echo two >> ${host.work}/starts"}
"""


def yes(_offer: Offer) -> bool:
    return True


def take(place: Place, folder: Path, *, actor: str = "bob") -> Pulled:
    """`pull` with a yes, and PROGRESS.md brought up to date as the verb does."""
    pulled = pull(place, folder, actor=actor, agree=yes)
    with Service.open(folder, actor=actor) as service:
        service.write_progress()
    return pulled
