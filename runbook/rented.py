"""Which machine a role asks for, as far as the runbook's words tell: this one, or a rented one."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from state import Snapshot

HERE, THERE = "local", "USER@ADDRESS -p PORT"
GPU = re.compile(r"(?<!no )\bGPUs?\b")


def where(snapshot: Snapshot, role: str) -> str:
    """What `host bind ROLE` is to be followed by.

    From the graph alone, so that every reader is told the same: whether this machine has GPUs
    does not count.
    """
    title = json.loads(snapshot.meta.extra.get("roles", "{}")).get(role, "")
    asked = re.compile(rf"\brent\b[^.;]*`{re.escape(role)}`", re.IGNORECASE)
    texts = (str(t.definition.get("with", {}).get("ask")) for t in snapshot.tasks if not t.removed)
    rented = GPU.search(title) or re.search(r"\brent", title, re.IGNORECASE)
    return THERE if rented or any(map(asked.search, texts)) else HERE
