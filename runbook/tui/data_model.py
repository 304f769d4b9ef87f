"""What an audit found, as text: gates, histograms, and samples with their loss mask. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.style import Style
from rich.text import Text

from runbook.tui import format as fmt

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from runbook.tui.describe import Looks

UNDER = Style(underline=True)
"""Tokens with loss are underlined too: colour alone says nothing to some."""
MOST_TEXT = 4000


def report_sections(
    report: Mapping[str, Any], looks: Looks, *, width: int
) -> Iterator[tuple[str, list[Text]]]:
    """Label and lines of the report."""
    inks = looks.inks
    splits = _mapping(report.get("splits"))
    rows = fmt.number(report.get("rows"))
    said = ", ".join(f"{fmt.clean(name)} {fmt.number(count)}" for name, count in splits.items())
    yield "rows", [Text(f"{rows}{f'  ({said})' if said else ''}", style=inks.text)]
    gates = report.get("gates")
    yield (
        "gates",
        [_gate(gate, looks) for gate in gates if isinstance(gate, dict)]
        if gates
        else [Text("none were set", style=inks.muted)],
    )
    for label, name in (("loss", "loss_tokens"), ("length", "length")):
        numbers = _mapping(report.get(name))
        if numbers:
            yield label, list(_distribution(numbers, looks, width))
    shares = _mapping(report.get("shares"))
    yield "shares", [_share(name, share, report, looks) for name, share in shares.items()]
    for label, found in (
        ("finished", _mapping(report.get("finish_reasons"))),
        ("thinking", _mapping(_mapping(report.get("thinking")).get("counts"))),
        ("special", _mapping(report.get("special_ids"))),
    ):
        if found:
            counts = ", ".join(f"{fmt.clean(k)} {fmt.number(v)}" for k, v in found.items())
            yield label, [Text(counts, style=inks.text)]


def _gate(gate: Mapping[str, Any], looks: Looks) -> Text:
    passed = bool(gate.get("passed"))
    glyph = looks.glyphs.ok if passed else looks.glyphs.bad
    ink = looks.inks.ok if passed else looks.inks.bad
    said = fmt.clean(gate.get("sentence") or gate.get("gate") or "")
    word = "" if passed else "fails: "
    return Text.assemble((f"{glyph} {word}", ink), (said, looks.inks.text))


def _share(name: str, share: Any, report: Mapping[str, Any], looks: Looks) -> Text:
    shown = f"{share:.2%}" if isinstance(share, int | float) else "unknown"
    line = Text.assemble(
        (f"{fmt.clean(name).replace('_', ' '):<18}", looks.inks.muted),
        (f"{shown:>8}", looks.inks.text if share else looks.inks.muted),
    )
    examples = _mapping(report.get("examples")).get(name)
    if isinstance(examples, list) and examples:
        line.append("  " + ", ".join(fmt.clean(one) for one in examples[:3]), looks.inks.muted)
    return line


def _distribution(numbers: Mapping[str, Any], looks: Looks, width: int) -> Iterator[Text]:
    inks = looks.inks
    yield Text.assemble(
        (f"mean {fmt.number(numbers.get('mean'))}", inks.text),
        (f"  total {fmt.number(numbers.get('total'))}", inks.muted),
    )
    order = ("min", "p5", "p25", "p50", "p75", "p95", "max")
    said = "  ".join(f"{name} {fmt.number(numbers[name])}" for name in order if name in numbers)
    yield Text(said, style=inks.muted)
    bins = [row for row in numbers.get("histogram") or () if isinstance(row, dict)]
    most = max((int(row.get("rows") or 0) for row in bins), default=0)
    edge = max((len(_span(row)) for row in bins), default=0)
    room = max(8, min(48, width - edge - 10))
    for row in bins:
        count = int(row.get("rows") or 0)
        cells = round(room * count / most) if most else 0
        bar = ("#" if looks.glyphs.ascii_only else "█") * (cells or bool(count))
        yield Text.assemble(
            (f"{_span(row):>{edge}} ", inks.muted), (bar, inks.busy),
            (f" {fmt.number(count)}", inks.text if count else inks.faint),
        )  # fmt: skip


def _span(row: Mapping[str, Any]) -> str:
    return f"{fmt.number(row.get('from'))}-{fmt.number(row.get('to'))}"


def sample_row(sample: Mapping[str, Any], looks: Looks) -> tuple[tuple[str, Style], ...]:
    """One line of the list: what is wrong with it first."""
    flags = [fmt.clean(flag) for flag in sample.get("flags") or ()]
    glyph = looks.glyphs.bad if flags else looks.glyphs.ok
    ink = looks.inks.warn if flags else looks.inks.ok
    return (
        (f"{glyph} ", ink),
        (fmt.clean(sample.get("id") or "?"), looks.inks.text),
        (f"  {', '.join(flags)}" if flags else "", looks.inks.warn),
        (f"  {fmt.number(sample.get('loss_tokens') or 0)} tok", looks.inks.muted),
    )


def sample_text(sample: Mapping[str, Any], looks: Looks) -> Text:
    """A sample as a person reads it; with token ids, the edge of the loss mask."""
    inks = looks.inks
    out = Text()
    facts = (
        ("split", sample.get("split")), ("finished", sample.get("finish_reason")),
        ("thinking", sample.get("thinking")), ("length", sample.get("length")),
        ("loss tokens", sample.get("loss_tokens")),
    )  # fmt: skip
    for name, value in facts:
        if value not in (None, ""):
            out.append(f"{name} ", inks.muted).append(f"{fmt.value(value)}   ", inks.text)
    out.append("\n")
    tokens = sample.get("tokens")
    if isinstance(tokens, list) and tokens:
        _tokens(out, tokens, looks)
    for message in sample.get("messages") or ():
        one = _mapping(message)
        _part(out, fmt.clean(one.get("role") or "?"), one.get("content"), looks)
    _part(out, "thinks", sample.get("reasoning"), looks)
    _part(out, "answers", sample.get("content"), looks)
    return out


def _part(out: Text, title: str, text: Any, looks: Looks) -> None:
    if text:
        out.append(f"\n{title}\n", looks.inks.accent)
        shown = str(text)[:MOST_TEXT]
        out.append_text(fmt.paragraphs(shown, looks.inks.text)).append("\n")


def _tokens(out: Text, tokens: list[Any], looks: Looks) -> None:
    """Each token as it reads: what is trained on stands out by colour and by a line below."""
    inks = looks.inks
    out.append("\nloss mask  ", inks.accent)
    out.append("trained on", inks.ok + UNDER).append("  ")
    out.append("only read", inks.muted).append("\n")
    for token in tokens:
        one = _mapping(token)
        ink = inks.ok + UNDER if one.get("loss") else inks.muted
        text = str(one.get("text", ""))
        for index, line in enumerate(text.split("\n")):
            if index:
                out.append("\\n" if looks.glyphs.ascii_only else "↵", inks.faint).append("\n")
            out.append(_kept(line), ink)
    out.append("\n")


def _kept(text: str) -> str:
    """A piece of a line, clean, with the blanks at its ends."""
    return fmt.clean(text, most=200)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
