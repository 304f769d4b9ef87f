"""How many requests a server has at a time, against simulated servers: no clock, no network."""

from __future__ import annotations

import pytest

from dflash.window import Window


class Told:
    """A server that runs `places` requests and says what waits."""

    def __init__(self, places: int) -> None:
        self.places = places

    def look(self, window: Window) -> None:
        ours = window.limit
        running = min(ours, self.places)
        window.load(running=running, waiting=ours - running, ours=ours)


@pytest.mark.parametrize("places", [1, 3, 40, 200])
def test_a_server_that_tells_has_a_short_waiting_line(places: int) -> None:
    server, window = Told(places), Window(limit=16, ceiling=256)
    for _ in range(20):
        server.look(window)
    assert places <= window.limit <= places + max(2, places // 4)


def test_the_ramp_takes_seconds_and_not_minutes() -> None:
    server, window, looks = Told(200), Window(limit=16, ceiling=256), 0
    while window.limit < 200:
        server.look(window)
        looks += 1
    assert looks <= 8  # two seconds each


def test_a_server_that_bears_less_than_before_gets_less_at_once() -> None:
    server, window = Told(100), Window(limit=100, ceiling=256)
    server.places = 20
    server.look(window)
    assert window.limit <= 24


def test_nobody_waits_and_the_window_is_not_full_says_nothing() -> None:
    window = Window(limit=16, ceiling=256)
    window.load(running=3, waiting=0, ours=3)
    assert window.limit == 16


class Silent:
    """A server that runs `places` requests; all the others wait. One answer of 100 tokens takes a
    second of one place."""

    def __init__(self, places: int) -> None:
        self.places, self.now = places, 0.0

    def rounds(self, window: Window, count: int) -> None:
        for _ in range(count):
            for _ in range(window.limit):
                self.now += 1.0 / min(window.limit, self.places)
                window.answered(tokens=100, now=self.now, full=True)


@pytest.mark.parametrize("places", [16, 60, 150])
def test_without_a_word_from_the_server_throughput_decides(places: int) -> None:
    server, window = Silent(places), Window(limit=16, ceiling=256)
    server.rounds(window, 60)
    # A step up that brought nothing was taken back: at most one ramp step above what is borne.
    assert places <= window.limit <= max(places * 1.5, 24)


def test_what_brought_nothing_is_tried_again_later() -> None:
    server, window = Silent(16), Window(limit=16, ceiling=256)
    server.rounds(window, 12)
    before = window.limit
    server.places = 64
    server.rounds(window, 200)
    assert before <= 24
    assert window.limit >= 48


def test_answers_while_the_window_is_not_full_say_nothing() -> None:
    window, now = Window(limit=16, ceiling=256), 0.0
    for _ in range(500):
        now += 0.01
        window.answered(tokens=100, now=now, full=False)
    assert window.limit == 16


def test_one_overload_cuts_once_however_many_requests_tell_of_it() -> None:
    window = Window(limit=100, ceiling=256)
    for sent in range(10):
        window.overloaded(sent=float(sent), now=20.0)
    assert window.limit == 70
    window.overloaded(sent=21.0, now=22.0)
    assert window.limit == 49


def test_after_an_outage_the_ramp_begins_again() -> None:
    server, window = Told(100), Window(limit=64, ceiling=256)
    for n in range(12):  # turned away while it starts
        window.overloaded(sent=float(n), now=n + 0.5)
    assert window.limit == 1
    window.forget()
    looks = 0
    while window.limit < 100:
        server.look(window)
        looks += 1
    assert looks <= 14


def test_the_limit_stays_within_its_bounds() -> None:
    window = Window(limit=1, ceiling=4)
    window.overloaded(sent=0.0, now=1.0)
    assert window.limit == 1
    for _ in range(20):
        window.load(running=window.limit, waiting=0, ours=window.limit)
    assert window.limit == 4
