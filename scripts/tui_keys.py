"""Writes the table of keys into docs/tui.md, between its markers."""

from __future__ import annotations

from pathlib import Path

from runbook.tui.keymap import KEYS

BEGIN, END = "<!-- keys -->", "<!-- /keys -->"


def main() -> None:
    page = Path(__file__).parents[1] / "docs" / "tui.md"
    head, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    rows = ["| name | key | does |", "|---|---|---|"]
    rows += [f"| `{key.id}` | `{key.shown}` | {key.help} |" for key in KEYS]
    page.write_text(head + BEGIN + "\n" + "\n".join(rows) + "\n" + END + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
