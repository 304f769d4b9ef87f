"""The audit on the stream of completions: a run that makes nothing of use stops within the hour.

After the first N rows, and after every N more, all rows of this run and the latest N are judged. A
share stops the run only where chance cannot explain it (Wilson's interval, three sigma): at 500
rows that means 8 % for an allowed 5 %, and a single row where none is allowed. Numbers that only
grow with the run, such as `min_rows`, are left to `dflash audit`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dflash.audit_report import render
from dflash.completions import template_kwargs_of
from dflash.errors import GateFailed
from dflash.files import remove_asides, write_json, write_text
from dflash.gates import RULES, judge, shortly
from dflash.looker import Eye, Tally
from dflash.sights import RENDERED, sight_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from dflash.tokenizer import TargetTokenizer

FOLDER = "early-audit"
SIGMA = 3.0
GROWING = frozenset(
    ["min_rows", "min_heldout_rows", "min_mean_loss_tokens", "max_mean_loss_tokens"]
)
"""The first rows to end are the short ones, so means say nothing yet either."""


class EarlyAudit:
    """Looks at each row as it comes; raises GateFailed when a gate does not hold.

    Only for one who holds the folder's lock.
    """

    def __init__(
        self,
        folder: Path,
        *,
        gates: Mapping[str, float | str],
        after: int,
        settings: Mapping[str, Any],
        tokenizer: TargetTokenizer | None = None,
    ) -> None:
        self.judged = 0
        self._folder = folder
        self._gates = {name: limit for name, limit in gates.items() if name not in GROWING}
        self._after = after
        self._tokenizer = tokenizer
        self._kwargs = template_kwargs_of(dict(settings), None)
        self._eye = Eye(tokenizer)
        self._all, self._latest = Tally(self._eye), Tally(self._eye)
        remove_asides(folder / FOLDER)

    def replay(self, records: Iterable[dict[str, Any]], *, judge: bool) -> None:
        """The latest rows of earlier runs: what stopped those stops this one before it asks."""
        for record in records:
            self.add(record)
        if judge:
            self.judge()

    def add(self, record: dict[str, Any]) -> None:
        """One more row."""
        again = self._tokenizer if self._all.rows < RENDERED else None
        seen = self._eye.look(sight_of(record, again, self._kwargs))
        self._all.add(seen)
        self._latest.add(seen)
        if self._latest.rows >= self._after:
            self.judge()
            self._latest = Tally(self._eye)

    def judge(self) -> None:
        """Also at the end, for runs of fewer rows."""
        if not self._all.rows or self._all.rows == self.judged:
            return
        first = self._latest.rows == self._all.rows
        self.judged = self._all.rows
        for tally in (self._all,) if first else (self._all, self._latest):
            self._judge(tally)

    def _judge(self, tally: Tally) -> None:
        which = "the first" if tally is self._all else "the latest"
        report = tally.report(source=f"{self._folder}, {which} {tally.rows:,} rows of this run")
        gates = judge(self._gates, report)
        for gate in gates:
            gate["passed"] = gate["passed"] or not _sure(gate, report)
        failed = [gate for gate in gates if not gate["passed"]]
        report.update(gates=gates, passed=not failed)
        out = self._folder / FOLDER
        write_json(out / "report.json", report)
        write_text(out / "report.txt", render(report))
        write_json(out / "samples.json", {"samples": tally.samples()})
        if failed:
            # A runbook shows the last line and the hint as the reason, and cuts what is longer.
            raise GateFailed(
                f"of {which} {tally.rows:,} rows\n  "
                + "\n  ".join(gate["sentence"] for gate in failed)
                + f"\nstopped by the early audit of {which} {tally.rows:,} rows: "
                + ", ".join(map(shortly, failed)),
                f"See {out / 'samples.json'}; then another --out, or allow it with "
                f"--gate {_allowing(failed[0])}.",
            )


def _sure(gate: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """Whether the rows seen prove that a gate does not hold, rather than happen to break it."""
    found, limit = gate["found"], gate["limit"]
    if gate["gate"] == "thinking":
        if found is None:
            return False  # no row has ended by itself: `max_truncated` has its say
        if limit == "off":
            return True
        wanted = 1.0 if limit == "required" else float(limit)
        return _interval(found, report["thinking"]["finished"])[1] < wanted
    if found is None or not RULES[gate["gate"]].share:
        return found is not None
    return _interval(found, report["rows"])[0] > float(limit)


def _interval(share: float, rows: int) -> tuple[float, float]:
    """Wilson's: where the true share lies, from what so many rows show."""
    square = SIGMA * SIGMA / rows
    middle = share + square / 2
    reach = SIGMA * math.sqrt(share * (1 - share) / rows + square / (4 * rows))
    return (middle - reach) / (1 + square), (middle + reach) / (1 + square)


def _allowing(gate: Mapping[str, Any]) -> str:
    return "thinking=any" if gate["gate"] == "thinking" else f"{gate['gate']}=1"
