"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from runbook.units import parse_bytes, parse_duration, show_bytes


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), ("250ms", 0.25),
     (5, 5), (0.5, 0.5), (0, 0), ("3", 3), ("1.5", 1.5)],
)  # fmt: skip
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10x", "m", "10 m", "10min", "-1s", -1, True, None, [1],
                                  float("nan"), 10**400, "9" * 400])  # fmt: skip
def test_no_durations(text: object) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 4 << 30), ("4 GiB", 4 << 30), ("500MB", 500_000_000), ("1.5KiB", 1536), ("7B", 7),
     (3, 3)],
)  # fmt: skip
def test_sizes(text: object, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "4", "4G", "4gib", "-4GiB", -1, 1.5, True, None])
def test_no_sizes(text: object) -> None:
    with pytest.raises(ValueError, match=r"size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 << 40, "3.0 TiB")]
)
def test_shown_sizes(size: int, text: str) -> None:
    assert show_bytes(size) == text
