"""One plan as a record, its text table and its JSON. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A figure that a plan once stood on, beside what the arithmetic gives."""

    what: str
    said: str
    computed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """What `dflash plan` answers; `numbers` is what a machine reads, in base units."""

    kind: str
    title: str
    tables: tuple[Table, ...]
    numbers: dict[str, Any]
    conclusion: tuple[str, ...]
    assumptions: tuple[str, ...]
    said: tuple[Said, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.kind,
            "title": self.title,
            "numbers": self.numbers,
            "conclusion": list(self.conclusion),
            "assumptions": list(self.assumptions),
            "said": [{"what": s.what, "said": s.said, "computed": s.computed} for s in self.said],
        }

    def text(self) -> str:
        parts = [self.title]
        parts += ["\n".join(_lines(table)) for table in self.tables]
        parts.append("\n".join(self.conclusion))
        if self.said:
            said = [
                f"  {s.what}: the seed said {s.said} / we compute {s.computed}" for s in self.said
            ]
            parts.append("\n".join(("figures of the seed plan:", *said)))
        parts.append("\n".join(("assumptions:", *(f"  - {line}" for line in self.assumptions))))
        return "\n\n".join(parts) + "\n"


def _lines(table: Table) -> list[str]:
    """First column to the left, numbers to the right, a last column of words to the left."""
    rows = (table.columns, *table.rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    return [_line(row, widths) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    last = len(row) - 1
    cells = [
        cell.ljust(width) if i in (0, last) else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def size(count: float) -> str:
    """Bytes as disks are sold: 92.4 TB, 645 GB."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            shown = count / scale
            return f"{shown:,.1f} {unit}" if shown < 100 else f"{shown:,.0f} {unit}"
    return f"{count:,.0f} B"


def gib(count: float) -> str:
    """Bytes as GPUs are sold."""
    return f"{count / GIB:,.1f} GiB"


def duration(seconds: float) -> str:
    for unit, scale in (("days", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= (2 if unit == "days" else 1) * scale:
            return f"{seconds / scale:,.1f} {unit}"
    return f"{seconds * 1e3:,.2g} ms" if seconds < 0.01 else f"{seconds * 1e3:,.0f} ms"
