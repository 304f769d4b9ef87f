"""A host whose every word passes the redactor before the engine hears it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from remote import Host, RemoteError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from remote import JobStatus
    from remote.model import LogChunk, Stream
    from remote.transport import Transport
    from runbook.secrets import SecretBox

CODED = frozenset({"read", "read_file"})
"""Verbs whose answers carry base64: decoded first, hidden then."""


class QuietHost(Host):
    """As `Host`, with the secrets that were handed out from here hidden in all its answers."""

    def __init__(
        self, transport: Transport, *, root: str, workspace_id: str, secrets: SecretBox
    ) -> None:
        super().__init__(transport, root=root, workspace_id=workspace_id)
        self._secrets = secrets
        self._ended: set[str] = set()

    def poll(self, attempts: Iterable[str]) -> dict[str, JobStatus]:
        """Also remembers whose logs are at their end."""
        found = super().poll(attempts)
        self._ended |= {name for name, status in found.items() if status.state != "running"}
        return found

    def read_log(
        self, attempt: str, stream: Stream, *, offset: int, limit: int = 1 << 18, file_id: str = ""
    ) -> LogChunk:
        """What could be the beginning of a secret comes with the chunk after it.

        Of an attempt whose secrets this machine does not have, nothing comes: they could show.
        """
        chunk = super().read_log(attempt, stream, offset=offset, limit=limit, file_id=file_id)
        if not self._secrets.is_guarded(attempt):
            return replace(chunk, data=b"")
        final = attempt in self._ended and chunk.end >= chunk.size
        hide, gap = self._secrets.redactor, chunk.offset != offset
        return replace(chunk, data=hide.stream(chunk.data, final=final, after_gap=gap))

    def read_file(self, path: str, limit: int) -> bytes:
        """A file has no further chunk."""
        return self._secrets.redactor.stream(super().read_file(path, limit), final=True)

    def _verb(self, verb: str, body: Mapping[str, Any], **how: Any) -> dict[str, Any]:
        hide = self._secrets.redactor
        try:
            answer = super()._verb(verb, body, **how)
        except RemoteError as error:
            error.message, error.hint = hide.text(error.message), hide.text(error.hint)
            error.args = (error.message,)
            raise
        if verb in CODED:
            return answer
        hidden: dict[str, Any] = hide.value(answer)
        return hidden
