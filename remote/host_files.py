"""Files of a host: small ones in one answer, others in blocks that stream."""

from __future__ import annotations

import base64
import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

from remote import transfer, transfer_pull, transfer_push
from remote.asked import Asked
from remote.errors import NoRoom, TransferFailed, Unreachable
from remote.program import ROUND_TRIP_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from remote.stream import Stream


class HostFiles(Asked):
    """What is put on a host, and fetched from it."""

    def ship(self, files: Mapping[str, bytes], *, name: str) -> str:
        """Put small files on the host under their content hash; the directory they are in."""
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(f"{path}\0{len(files[path])}\0".encode())
            digest.update(files[path])
        body = {
            "name": f"{name}-{digest.hexdigest()[:16]}",
            "files": {path: base64.b64encode(data).decode() for path, data in files.items()},
        }
        return str(self._verb("ship", body, timeout=5 * ROUND_TRIP_S)["path"])

    def read_file(self, path: str, limit: int) -> bytes:
        return base64.b64decode(self._verb("read_file", {"path": path, "limit": limit})["data"])

    def push(
        self,
        local: Path,
        remote: str,
        *,
        progress: Callable[[transfer.Progress], None] | None = None,
        headroom: int = transfer.HEADROOM,
        patience_s: float = transfer.PATIENCE_S,
    ) -> transfer.Report:
        """Send a file or a tree to exactly this path; the same call goes on after a cut.

        Raises:
            NoRoom: the space there, less the headroom, is short.
            Unreachable: no block arrived for `patience_s`. What arrived is kept.
        """
        return transfer_push.push(
            self, local, remote, progress=progress, headroom=headroom, patience_s=patience_s
        )

    def pull(
        self,
        remote: str,
        local: Path,
        *,
        progress: Callable[[transfer.Progress], None] | None = None,
        headroom: int = transfer.HEADROOM,
        patience_s: float = transfer.PATIENCE_S,
    ) -> transfer.Report:
        """Fetch a file or a tree from the host, as `push` sends one."""
        return transfer_pull.pull(
            self, remote, local, progress=progress, headroom=headroom, patience_s=patience_s
        )

    def transfer_verb(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One request of a transfer, on the connection that no poll waits for."""
        answer = self._verb(verb, body, refusals=True, over=self.transport.bulk())
        self.transfer_answered(answer, body)
        return answer

    @contextlib.contextmanager
    def transfer_stream(self, verb: str, body: Mapping[str, Any]) -> Iterator[Stream]:
        """Blocks to the host, or from it, on that connection too."""
        bulk = self.transport.bulk()
        with self._program.stream(verb, body, over=bulk, timeout=ROUND_TRIP_S) as stream:
            yield stream

    def transfer_answered(self, answer: Mapping[str, Any], body: Mapping[str, Any]) -> None:
        """Raises what a refusal means."""
        if answer["ok"]:
            return
        if answer["error"] == "cut":
            raise Unreachable(f"{self.label}: {answer['message']}")
        if answer["error"] == "no_room":
            need, free = answer["need"], answer["free"]
            where, headroom = f"{body['path']} on {self.label}", int(body["headroom"])
            raise NoRoom(where, need=need, free=free, headroom=headroom)
        raise TransferFailed(f"{self.label}: {answer['message']}")
