"""The audit's histograms as a PNG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from dflash.files import write_aside

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

WIDTH, PANEL, MARGIN, FOOT, HEAD = 900, 300, 60, 44, 40
PAPER, INK, FAINT, BAR = "#ffffff", "#222222", "#cccccc", "#3b7dd8"


def draw(path: Path, title: str, panels: Sequence[tuple[str, Mapping[str, Any]]]) -> bool:
    """One panel below the other; False where Pillow is not installed."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        return False
    image = Image.new("RGB", (WIDTH, HEAD + PANEL * len(panels)), PAPER)
    pen: Any = ImageDraw.Draw(image)
    big, small = ImageFont.load_default(18), ImageFont.load_default(13)
    pen.text((MARGIN, 12), title, fill=INK, font=big)
    for number, (name, numbers) in enumerate(panels):
        _panel(pen, HEAD + number * PANEL, name, numbers, small)
    data = io.BytesIO()
    image.save(data, "PNG")
    with write_aside(path) as handle:
        handle.write(data.getvalue())
    return True


def _panel(pen: Any, top: int, name: str, numbers: Mapping[str, Any], font: Any) -> None:
    bins = numbers["histogram"]
    most = max(row["rows"] for row in bins)
    floor, high = top + PANEL - FOOT, PANEL - FOOT - 40
    step = (WIDTH - 2 * MARGIN) / len(bins)
    words = (
        f"{name}: mean {numbers['mean']:,.1f}, median {numbers['p50']:,}, max {numbers['max']:,}"
    )
    pen.text((MARGIN, top + 8), words, fill=INK, font=font)
    for number, row in enumerate(bins):
        left = MARGIN + number * step
        height = round(high * row["rows"] / most)
        if row["rows"]:
            height = max(height, 1)  # what is there must show
            pen.rectangle((left + 2, floor - height, left + step - 2, floor), fill=BAR)
            pen.text(
                (left + step / 2, floor - height - 4), f"{row['rows']:,}", fill=INK, font=font,
                anchor="ms",
            )  # fmt: skip
        pen.text((left + 2, floor + 6), f"{row['from']:,}", fill=INK, font=font)
    pen.line((MARGIN, floor, WIDTH - MARGIN, floor), fill=FAINT, width=1)
