"""The loader: in order, ahead but not far, errors at their place, closed without waiting."""

from __future__ import annotations

import threading
import time

import pytest

from dflash.prefetch import Prefetch

DEADLINE_S = 60


def test_in_order_and_at_most_so_far_ahead() -> None:
    made: list[int] = []
    loader = Prefetch(range(50), lambda n: made.append(n) or n, depth=3)
    deadline = time.monotonic() + DEADLINE_S
    while len(made) < 4:  # three wait, one more is made and finds no room
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert [loader.take() for _ in range(50)] == list(range(50))
    assert made == list(range(50))


def test_an_error_comes_out_where_it_belongs() -> None:
    def make(number: int) -> int:
        if number == 2:
            raise ValueError("document 2")
        return number

    loader = Prefetch(range(1000), make)
    assert [loader.take(), loader.take()] == [0, 1]
    with pytest.raises(ValueError, match="document 2"):
        loader.take()


def test_closing_ends_its_thread() -> None:
    before = set(threading.enumerate())
    loader = Prefetch(range(1000), lambda n: n)
    loader.take()
    loader.close()
    assert set(threading.enumerate()) <= before
