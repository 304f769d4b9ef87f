"""The whole campaign of the network's faults, and its table.

    PYTHONPATH=. python3 tests/faults/campaign.py [--seed 1] [--scale 5] [--only WORD]
        [--write docs/faults.md]

Exit 1 when any attempt began twice or lost its outcome.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path

from tests.faults.field import Tally, prepared
from tests.faults.network import FAULTS, Fault
from tests.support import namespaces

HEAD = """\
## Faults of the network

A job is launched, followed and ended over SSH while the network, sshd or the host itself breaks.
However it breaks, each attempt must begin at most once, and each must end with an outcome that is
known. Every job writes a line when it begins, and ends with an exit code of its own: the table
counts lines and codes, it does not believe anybody. *Lost answers* are requests that were told as
unknown, and were repeated.

`{command}`, {date}, {machine}.

| fault | attempts | begun twice | outcome unknown | lost answers | outcomes | found | time |
|---|---|---|---|---|---|---|---|
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("RUNBOOK_SEED", "1")))
    parser.add_argument("--scale", type=int, default=int(os.environ.get("RUNBOOK_FAULTS", "5")))
    parser.add_argument("--only", default="")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    reason = namespaces.why_not()
    rows, sound = [], True
    total = Tally()
    for fault in FAULTS:
        if given.only not in fault.name:
            continue
        if fault.far and reason:
            rows.append(f"| {fault.name} | NOT RUN: {reason} | | | | | | |")
            continue
        began = time.monotonic()
        tally, said = run(fault, given.seed, given.scale)
        sound = sound and tally.sound and not said
        total.attempts += tally.attempts
        total.double += tally.double
        total.missing += tally.missing
        total.unknown += tally.unknown
        rows.append(row(fault.name, tally, said, time.monotonic() - began))
        print(rows[-1], flush=True)
    rows.append(row("**all**", total, "", None))
    print(rows[-1])
    if given.write is not None:
        command = f"PYTHONPATH=. python3 tests/faults/campaign.py --seed {given.seed} "
        text = HEAD.format(
            command=command + f"--scale {given.scale}",
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            machine=f"{os.cpu_count()} cores, {platform.system()}, Python "
            f"{platform.python_version()}",
        )
        put(given.write, text + "\n".join(rows) + "\n")
    return 0 if sound else 1


def run(fault: Fault, seed: int, scale: int) -> tuple[Tally, str]:
    """One fault, and what went wrong with it in our eyes."""
    chance = random.Random(f"{seed} {fault.name}")
    with tempfile.TemporaryDirectory(prefix="runbook-faults-") as folder:
        field = None
        try:
            with prepared(Path(folder), chance, scale=scale, far=fault.far) as field:
                fault.run(field)
        except Exception:  # noqa: BLE001 (one fault that fails must not hide the others)
            traceback.print_exc()
            return field.tally if field else Tally(), "FAILED"
    return field.tally, ""


def put(path: Path, section: str) -> None:
    """Replaces the section of that heading in a document, or adds it."""
    heading = section.splitlines()[0]
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    before, _, after = old.partition(f"{heading}\n")
    _, following, rest = after.partition("\n## ")
    text = f"{before.rstrip()}\n\n{section}" + (f"\n## {rest}" if following else "")
    path.write_text(text.lstrip(), encoding="utf-8")


def row(name: str, tally: Tally, failed: str, seconds: float | None) -> str:
    outcomes = ", ".join(f"{count} {what}" for what, count in sorted(tally.outcomes.items()))
    found = "; ".join(part for part in (failed, tally.said) if part)
    took = "" if seconds is None else f"{seconds:.0f} s"
    cells = (
        name,
        tally.attempts,
        tally.double,
        tally.missing,
        tally.unknown,
        outcomes,
        found,
        took,
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main())
