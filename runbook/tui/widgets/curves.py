"""One plot, drawn by plotext in the colours of the theme."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from textual_plotext import PlotextPlot

from runbook.tui import format as fmt
from runbook.tui.training_model import Plot, bounds, thinned
from runbook.tui.widgets.titled import Titled

if TYPE_CHECKING:
    from rich.style import Style

    from runbook.tui.describe import Looks

MARKERS = ("braille", "dot", "x")
"""Lines differ in how they are drawn too, not in colour alone."""
PLAIN_MARKERS = ("*", "o", "+")
SHOWN_MARKERS = ("⠒", "•", "x")


class CurvePlot(PlotextPlot, Titled, can_focus=True):
    """Draws again only when there is something else to draw."""

    def __init__(self, *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, classes="pane")
        self.auto_theme = False
        self._shown: tuple[object, ...] = ()

    def show(self, plot: Plot, looks: Looks, *, dark: bool) -> None:
        """Another plot, or the same with more points."""
        last = [(curve.label, len(curve.steps), curve.values[-1]) for curve in plot.curves]
        shown = (plot.title, last, looks, self.size)
        if shown == self._shown:
            return
        self._shown = shown
        self._draw(plot, looks)
        self.entitle(self._title(plot, looks))
        self.refresh()

    def on_resize(self) -> None:
        """Other columns, other points."""
        self._shown = ()

    def _title(self, plot: Plot, looks: Looks) -> Text:
        """With the mark of each curve: a legend in the plot would hide what it explains."""
        marks = PLAIN_MARKERS if looks.glyphs.ascii_only else SHOWN_MARKERS
        many = len(plot.curves) > 1
        line = Text(f"{plot.title}  ")
        for index, curve in enumerate(plot.curves):
            mark = f"{marks[index % 3]} " if many else ""
            line.append(f"{', ' if index else ''}")
            line.append(f"{mark}{curve.label} ".lstrip(), self._ink(index, looks))
            line.append(fmt.number(curve.values[-1]))
        return line

    @staticmethod
    def _ink(index: int, looks: Looks) -> Style:
        return (looks.inks.busy, looks.inks.warn, looks.inks.accent)[index % 3]

    def _draw(self, plot: Plot, looks: Looks) -> None:
        plt, plain = self.plt, looks.glyphs.ascii_only
        plt.clear_figure()
        plt.canvas_color("default")
        plt.axes_color("default")
        plt.ticks_color(_rgb(looks.inks.muted))
        plt.frame(False)
        room = max(16, self.size.width * 2 - 16)
        markers = PLAIN_MARKERS if plain else MARKERS
        for index, curve in enumerate(plot.curves):
            steps, values = thinned(curve, room)
            plt.plot(steps, values, marker=markers[index % 3], color=_rgb(self._ink(index, looks)))
        plt.ylim(*bounds([value for curve in plot.curves for value in curve.values]))
        first, last = plot.curves[0].steps[0], plot.curves[0].steps[-1]
        ticks = [first + (last - first) * n / 4 for n in range(5)]
        plt.xticks(ticks, [f"{tick:,.0f}" for tick in ticks])


def _rgb(style: Style) -> tuple[int, int, int] | str:
    if style.color is None or style.color.is_default:
        return "default"
    triplet = style.color.get_truecolor()
    return (triplet.red, triplet.green, triplet.blue)
