"""Draws the pictures of the terminal interface for the README and the docs.

A scripted session in tmux on a frozen workspace, captured as text; the same places exported as SVG
by Textual, and as PNG where rsvg-convert is. Run: PYTHONPATH=. python scripts/tui_pictures.py
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["TEXTUAL_ANIMATIONS"] = "none"

from runbook.tui.app import RunbookApp
from runbook.tui.places import PLACES
from tests.support.fake_service import NOW, example
from tests.support.tmux import Tmux
from tests.support.tui_driver import driven
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[1]
OUT = ROOT / "docs" / "images"
SIZE = (118, 34)
SHOWN = {
    "board": "620 lines", "training": "acceptance length", "attention": "what can be done",
    "hosts": "H200",
}  # fmt: skip
PICTURES = ("board", "training")
"""Places that also get a PNG."""
CELLS = re.compile(
    r'<text ([^>]*?)x="([\d.]+)"([^>]*?) textLength="([\d.]+)"([^>]*)>([^<&]*)</text>'
)
ENVIRONMENT = {"LANG": "C.UTF-8", "TERM": "xterm-256color"}


def make(folder: Path) -> RunbookApp:
    """The frozen workspace that the tests use too."""
    world = example(folder)
    return RunbookApp(
        world.open, crash_file=folder / "crash", clock=lambda: NOW, environment=ENVIRONMENT
    )


def text_of(app: RunbookApp) -> str:
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())  # noqa: SLF001


async def draw() -> None:
    """One SVG for each place, and its PNG."""
    with tempfile.TemporaryDirectory() as name:
        app = make(Path(name))
        async with driven(app, SIZE) as pilot:
            for place, text in SHOWN.items():
                await pilot.press(str([p.id for p in PLACES].index(place) + 1))
                await wait_until(lambda text=text: text in text_of(app), place)
                await pilot.pause()
                keep(place, app.export_screenshot())


def keep(place: str, svg: str) -> None:
    """The SVG as it is; the PNG with a font that converters have."""
    (OUT / f"{place}.svg").write_text(svg, encoding="utf-8")
    if place not in PICTURES or not shutil.which("rsvg-convert"):
        return
    plain = re.sub(r'font-family: ?"?Fira Code[^;]*;', "font-family: DejaVu Sans Mono;", svg)
    plain = plain.replace("Fira Code", "DejaVu Sans Mono").replace("&#160;", " ")
    plain = CELLS.sub(apart, plain)
    plain = plain.replace("<text ", '<text xml:space="preserve" ')
    subprocess.run(
        ["rsvg-convert", "--width", "1100", "-o", str(OUT / f"{place}.png")],
        input=plain.encode(), check=True,
    )  # fmt: skip


def apart(found: re.Match[str]) -> str:
    """Braille dots of another font are wider than a cell: each gets its own place."""
    head, x, middle, length, rest, said = found.groups()
    if not any("\u2800" <= one <= "\u28ff" for one in said):
        return found[0]
    cell = float(length) / len(said)
    return "".join(
        f'<text {head}x="{float(x) + n * cell:.1f}"{middle}{rest}>{one}</text>'
        for n, one in enumerate(said)
        if not one.isspace()
    )


def session() -> None:
    """What a terminal shows, typed into as a person would."""
    with tempfile.TemporaryDirectory() as name:
        tmux = Tmux(Path(name))
        argv = ["env", f"PYTHONPATH={ROOT}", "LANG=C.UTF-8", sys.executable, __file__, "--open"]
        try:
            tmux.start("s", argv, 100, 30)
            tmux.wait_for("s", "Smoke test")  # the list, which comes after what stands beside it
            pages = []
            for key, text in (("1", "620 lines"), ("7", "what can be done"), ("4", "H200")):
                tmux.keys("s", key)
                pages.append(f"key {key}\n{tmux.wait_for('s', text)}")
        finally:
            tmux.close()
        text = "\n".join(line.rstrip() for line in "\n".join(pages).splitlines())
        (OUT / "session.txt").write_text(text.rstrip() + "\n", encoding="utf-8")


def main() -> None:
    if "--open" in sys.argv:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name)).run()
        return
    OUT.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw())
    session()


if __name__ == "__main__":
    main()
