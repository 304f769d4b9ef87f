"""The colours of both themes, as people see them who see fewer: apart, and readable."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest
from textual.color import Color

from runbook.tui.themes import THEMES

if TYPE_CHECKING:
    from textual.theme import Theme

# Machado, Oliveira, Fernandes 2009, severity 1.0, in linear RGB.
SEEN_AS = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "full colour": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
}  # fmt: skip
APART = 20.0
"""Distance in CIE Lab; 2.3 is just noticeable."""
READABLE = 4.5
"""WCAG AA for text."""


def linear(name: str) -> tuple[float, ...]:
    color = Color.parse(name)
    parts = (color.r / 255, color.g / 255, color.b / 255)
    return tuple(c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)


def luminance(name: str) -> float:
    r, g, b = linear(name)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def lab(rgb: tuple[float, ...]) -> tuple[float, float, float]:
    r, g, b = (max(0.0, min(1.0, c)) for c in rgb)
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def colours(theme: Theme) -> dict[str, str]:
    named = {"good": theme.success, "bad": theme.error, "warning": theme.warning,
             "busy": theme.primary, "yours": theme.accent}  # fmt: skip
    return {name: str(value) for name, value in named.items()}


@pytest.mark.parametrize("sight", SEEN_AS)
@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_states_are_told_apart_by_everybody(theme: Theme, sight: str) -> None:
    seen = {}
    for name, value in colours(theme).items():
        rgb = linear(value)
        rows = SEEN_AS[sight]
        seen[name] = lab(tuple(sum(a * b for a, b in zip(row, rgb, strict=True)) for row in rows))
    for one, other in combinations(seen, 2):
        distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
        assert distance >= APART, f"{one} and {other}: {distance:.0f}"


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_every_colour_is_readable(theme: Theme) -> None:
    ground = str(theme.background)
    for name, value in {**colours(theme), "text": str(theme.foreground)}.items():
        light, dark = sorted((luminance(value), luminance(ground)), reverse=True)
        contrast = (light + 0.05) / (dark + 0.05)
        assert contrast >= READABLE, f"{name}: {contrast:.1f}"
