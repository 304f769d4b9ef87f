"""How states get from the target to a drafter: in place, or point to point into a ring.

Both ends derive the same sequence of micro-batches, so a message carries states and four numbers.
A drafter grants its targets one micro-batch for each buffer it has freed; a target therefore works
ahead by `ring` micro-batches and no further, and the next forward overlaps the current step.

Between a target and a drafter, for micro-batch g: credit (drafter -> target, except for the first
ones, one for each buffer), then header and states (target -> drafter).
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist

from dflash.errors import DflashError
from dflash.out_of_memory import is_out_of_memory
from dflash.packing import forwards
from dflash.stopwatch import Span, mark
from dflash.train_config import ring_buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from dflash.batches import Batches, MicroBatch
    from dflash.target import TargetTaps

GO, STOP = 1, 0
HEADER_TAG, STATES_TAG, CREDIT_TAG = 1, 2, 3
HEADER = 5
"""Numbers before states: micro-batch, its tokens; busy and idle microseconds, tokens they made."""


class PeerLost(DflashError):
    """The other end of a connection is gone; the launcher knows which one died and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Which micro-batch goes where. Independent of the split: g alone decides the data."""

    targets: int
    drafters: int
    ring: int
    """Micro-batches that a target may work ahead."""
    first: int
    """The first micro-batch of this run: 0, or where the checkpoint left off."""
    end: int

    @property
    def buffers(self) -> int:
        """Of each drafter."""
        return ring_buffers(self.ring, self.targets, self.drafters)

    def target_of(self, g: int) -> int:
        return g % self.targets

    def drafter_of(self, g: int) -> int:
        return g % self.drafters

    def ahead(self, g: int) -> int:
        """The micro-batch whose buffer is the one that g has freed."""
        return g + self.buffers * self.drafters

    def needs_credit(self, g: int) -> bool:
        return g >= self.first + self.buffers * self.drafters

    def of_target(self, target: int) -> Iterator[int]:
        return (g for g in range(self.first, self.end) if self.target_of(g) == target)

    def first_ungranted(self, consumed: int, target: int) -> int:
        """The next micro-batch of this target when all before `consumed` are done everywhere."""
        g = max(consumed, self.first) + self.buffers * self.drafters
        return g + (target - g) % self.targets


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTimes:
    """What a target rank did since its last message, as far as its device has finished it."""

    busy_s: float = 0.0
    waited_s: float = 0.0
    tokens: int = 0
    """Computed in the busy time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """States of one micro-batch, and what the wait for them cost. Asking for times waits."""

    states: Tensor  # [tokens, K*H]
    wait: Span | None
    """Of the drafter; none where the same device made the states."""
    forward: Span | TargetTimes

    @property
    def waited_s(self) -> float:
        return self.wait.seconds if self.wait is not None else 0.0

    @property
    def target(self) -> TargetTimes:
        if isinstance(self.forward, TargetTimes):
            return self.forward
        return TargetTimes(busy_s=self.forward.seconds, tokens=len(self.states))


class Feed(Protocol):
    """Where a drafter takes states from."""

    def take(self, batch: MicroBatch) -> Delivery: ...

    def release(self, g: int) -> None: ...

    def stop(self, consumed: int) -> None: ...


class LocalFeed:
    """Target and drafter in one process, by turns."""

    def __init__(self, taps: TargetTaps, batches: Batches, dtype: torch.dtype) -> None:
        self.taps, self.batches, self.dtype = taps, batches, dtype

    def take(self, batch: MicroBatch) -> Delivery:
        start = mark(self.taps.device)
        shape = (batch.tokens, self.taps.width)
        states = torch.empty(shape, dtype=self.dtype, device=self.taps.device)
        packed_states(self.taps, self.batches, batch, states)
        return Delivery(states=states, wait=None, forward=Span(start, mark(self.taps.device)))

    def release(self, g: int) -> None:
        pass

    def stop(self, consumed: int) -> None:
        pass


class RingFeed:
    """The drafter's end: receives ahead into preallocated buffers."""

    def __init__(
        self,
        schedule: Schedule,
        drafter: int,
        batches: Batches,
        *,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.schedule, self.drafter, self.batches = schedule, drafter, batches
        shape = (schedule.buffers, batches.max_tokens, width)
        self.buffers = torch.empty(shape, dtype=dtype, device=device)
        self.headers = torch.zeros(schedule.buffers, HEADER, dtype=torch.long)
        self._receiving: dict[int, list[dist.Work]] = {}
        self._credits: deque[tuple[dist.Work, Tensor]] = deque()
        for i in range(schedule.buffers):
            self._receive(schedule.first + self._offset() + i * schedule.drafters)

    def _offset(self) -> int:
        """From the run's first micro-batch to this drafter's first."""
        return (self.drafter - self.schedule.first) % self.schedule.drafters

    def _slot(self, g: int) -> int:
        return (g // self.schedule.drafters) % self.schedule.buffers

    def _receive(self, g: int) -> None:
        if g >= self.schedule.end:
            return
        source, slot = self.schedule.target_of(g), self._slot(g)
        tokens = self.batches.micro_batch(g).tokens
        with peer_errors(f"target rank {source}"):
            self._receiving[g] = [
                _work(dist.irecv(self.headers[slot], source, tag=HEADER_TAG)),
                _work(dist.irecv(self.buffers[slot, :tokens], source, tag=STATES_TAG)),
            ]

    def take(self, batch: MicroBatch) -> Delivery:
        g = batch.number
        start = mark(self.buffers.device)
        with peer_errors(f"target rank {self.schedule.target_of(g)}"):
            for work in self._receiving.pop(g):
                work.wait()
        wait = Span(start, mark(self.buffers.device))
        number, tokens, busy_us, waited_us, done = self.headers[self._slot(g)].tolist()
        assert (number, tokens) == (g, batch.tokens), "the ranks disagree on the sequence of data"
        return Delivery(
            states=self.buffers[self._slot(g), :tokens],
            wait=wait,
            forward=TargetTimes(busy_s=busy_us / 1e6, waited_s=waited_us / 1e6, tokens=done),
        )

    def release(self, g: int) -> None:
        """The states of g are used up: receive the next ones in their place.

        The credit goes first: NCCL connects two ranks at their first transfer and holds the host
        until both are there, and the target is there only once it may send.
        """
        following = self.schedule.ahead(g)
        if following < self.schedule.end:
            self._credit(self.schedule.target_of(following), GO)
            self._receive(following)

    def stop(self, consumed: int) -> None:
        """End before the schedule does: tell the targets, take what is already on its way."""
        for target in range(self.schedule.targets):
            g = self.schedule.first_ungranted(consumed, target)
            if g < self.schedule.end and self.schedule.drafter_of(g) == self.drafter:
                self._credit(target, STOP)
        with peer_errors("a target rank"):
            for works in self._receiving.values():
                for work in works:
                    work.wait()
            for work, _ in self._credits:
                work.wait()

    def _credit(self, target: int, word: int) -> None:
        message = torch.tensor([word], dtype=torch.long)
        while self._credits and self._credits[0][0].is_completed():
            self._credits.popleft()
        with peer_errors(f"target rank {target}"):
            self._credits.append((_work(dist.isend(message, target, tag=CREDIT_TAG)), message))


def serve_states(
    schedule: Schedule,
    target: int,
    taps: TargetTaps,
    batches: Batches,
    *,
    dtype: torch.dtype,
    rank_of_drafter: Callable[[int], int],
    alive: Callable[[], None],
) -> None:
    """The target's end: micro-batches in order until the schedule ends or a drafter says stop."""
    sending: deque[tuple[list[dist.Work], list[Tensor]]] = deque()
    clock = _Clock(taps.device)
    ring: list[Tensor] = []  # of send buffers, made as they are first used
    for number, g in enumerate(schedule.of_target(target)):
        alive()
        drafter = rank_of_drafter(schedule.drafter_of(g))
        with peer_errors(f"drafter rank {drafter}"):
            if schedule.needs_credit(g) and _receive_credit(drafter) == STOP:
                break
            while len(sending) >= schedule.ring:
                _finish(sending.popleft())
            batch = batches.micro_batch(g)
            clock.start()
            if len(ring) < schedule.ring:
                shape = (batches.max_tokens, taps.width)
                ring.append(torch.empty(shape, dtype=dtype, device=taps.device))
            buffer = ring[number % schedule.ring][: batch.tokens]
            packed_states(taps, batches, batch, buffer)
            clock.stop(batch.tokens)
            times = clock.finished()
            header = torch.tensor(
                [
                    g,
                    batch.tokens,
                    int(times.busy_s * 1e6),
                    int(times.waited_s * 1e6),
                    times.tokens,
                ]
            )
            works = [
                _work(dist.isend(header, drafter, tag=HEADER_TAG)),
                _work(dist.isend(buffer, drafter, tag=STATES_TAG)),
            ]
            sending.append((works, [header, buffer]))
    with peer_errors("a drafter rank"):
        while sending:
            _finish(sending.popleft())


class _Clock:
    """Busy and idle spans of a target's device; a device lags behind its host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._spans: deque[tuple[Span, Span | None, int]] = deque()
        self._start: Any = None
        self._end: Any = None

    def start(self) -> None:
        self._start = mark(self.device)

    def stop(self, tokens: int) -> None:
        end = mark(self.device)
        idle = Span(self._end, self._start) if self._end is not None else None
        self._spans.append((Span(self._start, end), idle, tokens))
        self._end = end

    def finished(self) -> TargetTimes:
        """All that is over and was not told before."""
        busy = waited = 0.0
        tokens = 0
        while self._spans and self._spans[0][0].over:
            forward, idle, count = self._spans.popleft()
            busy += forward.seconds
            waited += idle.seconds if idle is not None else 0.0
            tokens += count
        return TargetTimes(busy_s=busy, waited_s=waited, tokens=tokens)


def packed_states(taps: TargetTaps, batches: Batches, batch: MicroBatch, out: Tensor) -> None:
    """Run the documents one a row, put their tokens one after the other into [tokens, K*H]."""
    lengths = [len(row.input_ids) for row in batch.rows]
    starts = list(itertools.accumulate(lengths, initial=0))
    for part in forwards(lengths):
        rows = batches.target_rows(batch, part)
        states = taps.states(rows.input_ids.to(taps.device), rows.lengths)
        for i, document in enumerate(part):
            out[starts[document] : starts[document + 1]] = states[i, : lengths[document]]


def _receive_credit(drafter: int) -> int:
    word = torch.zeros(1, dtype=torch.long)
    dist.recv(word, drafter, tag=CREDIT_TAG)
    return int(word)


def _finish(sent: tuple[list[dist.Work], list[Tensor]]) -> None:
    for work in sent[0]:
        work.wait()


def _work(work: dist.Work | None) -> dist.Work:
    assert work is not None, "this rank is not in the process group"
    return work


class peer_errors:
    """Turn a broken or timed out connection into PeerLost."""

    def __init__(self, peer: str) -> None:
        self.peer = peer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> None:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            said = str(error).splitlines()[0][:200]
            slow = " If it was only slow, raise --timeout-s." if "imed out" in said else ""
            raise PeerLost(
                f"The connection to {self.peer} broke: {said}",
                f"See what that rank said last. The newest checkpoint is whole.{slow}",
            ) from error
