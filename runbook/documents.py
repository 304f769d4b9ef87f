"""Documents to re-read: whether each still is what it was when it was listed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from state import Document


def document_states(root: Path, documents: Iterable[Document]) -> dict[str, str]:
    """Path -> `same`, `changed` or `gone`. Names are relative to the workspace."""
    return {document.path: _state(root / document.path, document) for document in documents}


def _state(path: Path, document: Document) -> str:
    try:
        if path.stat().st_size != document.size:
            return "changed"
        from hashlib import file_digest  # not needed to start, nor where nothing is listed

        with path.open("rb") as file:
            same = file_digest(file, "sha256").hexdigest() == document.sha256
    except OSError:
        return "gone"
    return "same" if same else "changed"
