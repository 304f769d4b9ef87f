"""Which servers of this workspace take no new requests: a folder with a file for each.

Clients on the same host look there before they send: a server that is about to be restarted answers
what it has, and gets nothing more. Losing the folder loses only that courtesy.
"""

from __future__ import annotations

import contextlib
import os
import re

from remote.supervisor.base import JSON, Refused
from remote.supervisor.files import publish

ADDRESS = re.compile(r"[A-Za-z0-9\[\]_.-]+(:[A-Za-z0-9_.:\[\]-]+)?")


def verb_draining(request: JSON, workspace: str) -> JSON:
    """Mark a server, or take the mark away; the servers that are marked now."""
    address = str(request["address"])
    if not ADDRESS.fullmatch(address) or address.startswith("."):
        raise Refused("usage", f"{address!r} is no HOST:PORT")
    folder = os.path.join(workspace, "draining")
    path = os.path.join(folder, address)
    if request.get("on"):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        publish(path, b"")
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    try:
        marked = sorted(os.listdir(folder))
    except FileNotFoundError:
        marked = []
    return {"draining": marked}
