"""The rate at which a task works once it is under way, from what it reported. Pure.

A small task spends much of its time on what a large one does once: it starts, fills its servers,
and waits for its last answers while most places stand empty. What lies between is its rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import dropwhile
from typing import TYPE_CHECKING, Any

from dflash.progress import parse_line

if TYPE_CHECKING:
    from collections.abc import Iterable

FULL = 0.9
"""Of the most that was under way at once: so many places are taken when it is under way."""
LEAST_LINES = 5
BEYOND = 1e18
"""No count and no time is so large; neither is what is no number at all."""
LEAST_SHARE = 0.3
"""Of the work: less than this between start and end says little of the rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of progress: what was done by then, and what was under way."""

    at: float
    done: float
    tokens: float
    running: float


def steady_s(lines: Iterable[str | bytes]) -> float | None:
    """How long its whole work would have taken at its steady rate; None where none can be seen."""
    found = moments(lines)
    if len(found) < LEAST_LINES:
        return None
    last, full = found[-1], [one for one in found if one.running >= FULL * _most(found)]
    window = _after_the_first(full)
    while len(window) > 1 and window[-1].done == window[-2].done:
        window.pop()  # it saves, or tells that it is done
    if len(window) < LEAST_LINES:
        return None
    # Answers come in all lengths: tokens tell sooner than answers how much was done.
    counts = [one.tokens if last.tokens else one.done for one in (found[0], *window, last)]
    work, share = counts[-1] - counts[0], counts[-2] - counts[1]
    took = window[-1].at - window[0].at
    if took <= 0 or share < LEAST_SHARE * work or share <= 0:
        return None
    return work * took / share


def _most(found: Iterable[Moment]) -> float:
    return max(one.running for one in found)


def _after_the_first(full: list[Moment]) -> list[Moment]:
    """Without the time that the first answers took: until then less ends than is under way."""
    if len(full) < 2 or not full[0].running:
        return full
    rate = (full[-1].done - full[0].done) / max(full[-1].at - full[0].at, 1e-9)
    first = full[0].running / rate if rate > 0 else 0.0  # Little's law: how long an answer takes
    return list(dropwhile(lambda one: one.at < full[0].at + first, full))


def moments(lines: Iterable[str | bytes]) -> list[Moment]:
    """The lines that count the task's own work: what it counted in first, from its first count."""
    found: list[Moment] = []
    unit = None
    for line in lines:
        event = parse_line(line)
        if event is None or event.get("kind") not in ("step", "done"):
            continue
        said = event.get("metrics")
        numbers: dict[str, Any] = said if isinstance(said, dict) else {}
        values = [event.get("t"), event.get("done"), numbers.get("tokens", 0),
                  numbers.get("running", 0)]  # fmt: skip
        if not all(isinstance(value, int | float) and abs(value) < BEYOND for value in values):
            continue
        unit = unit or event.get("unit")
        if event.get("unit") == unit:
            at, done, tokens, running = values
            found.append(Moment(at=at, done=done, tokens=tokens, running=running))
    return found
