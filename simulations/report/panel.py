"""One picture of the report: the series of a task, saved as files and for the page."""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.files import write_atomic
from fedpeft.page.colours import GRID, INK, PAPER, SOFT, variables
from fedpeft.readable import readable_bytes
from simulations.report.style import Style
from simulations.report.svg import gid, inline

if TYPE_CHECKING:
    from matplotlib.artist import Artist

_WIDTH, _HEIGHT = 5.6, 3.7  # inches, without the legend
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.76, 0.15, 0.36, 0.52  # inches around the axes
_ROW, _LETTER, _SWATCH = 0.185, 0.072, 0.5  # inches of a legend's line, letter and mark
_LONGEST = 64  # letters of a label in the legend of the files; the page shows all
_DPI = 150
_SIZE = 5.5  # points of a mark on a curve
_LARGER = {"*": 1.5, "X": 1.15, "P": 1.15}  # scale marks that would look too small
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # ships with matplotlib, so files are the same on every machine
    "font.size": 9,
    "text.parse_math": False,  # labels may contain dollar signs
    "text.color": INK,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.facecolor": PAPER,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.markersize": _SIZE,
    "lines.linewidth": 1.4,
    "svg.fonttype": "none",  # keep text as text
}


@dataclass(frozen=True)
class Picture:
    """A drawn panel: the name of its files, and its SVG for the page."""

    name: str
    svg: str


def settings() -> AbstractContextManager[None]:
    """Return the context manager in which panels are created and saved."""
    import matplotlib

    return matplotlib.rc_context(_SETTINGS)


class Panel:
    """Axes with series whose marks have tooltips on the page."""

    def __init__(self, title: str, x: str, y: str):
        from matplotlib.figure import Figure

        self.title = f"{title}: {y} against {x}"
        self.figure = Figure(figsize=(_WIDTH, _HEIGHT))
        self.axes = self.figure.subplots()
        self.axes.set_title(title, loc="left", fontweight="bold", fontsize=10)
        self.axes.set_xlabel(x)
        self.axes.set_ylabel(y)
        # At the edge, clear of the larger tick labels on phones.
        self.axes.yaxis.set_label_coords((0.18 - _LEFT) / (_WIDTH - _LEFT - _RIGHT), 0.5)
        self._tips: dict[str, list[str]] = {}
        self._drawn: dict[str, Any] = {}  # label -> line, for the legend of the files
        self._count = 0

    def series(
        self,
        style: Style,
        x: Sequence[float],
        y: Sequence[float],
        tips: Sequence[str],
        deviation: Sequence[float] | None = None,
        every: int = 1,
    ) -> None:
        """Draw a series as marks connected by a line.

        Args:
            style: style of the series.
            x: finite values.
            y: finite values.
            tips: tooltip of each point.
            deviation: drawn as an error bar for a single point, otherwise as a band; NaN as 0.
            every: mark every n-th point, and the last one.
        """
        size = _SIZE * _LARGER.get(style.marker, 1.0) * (1.0 if len(x) > 1 else 1.3)
        marked = sorted({*range(0, len(x), every), len(x) - 1})
        (line,) = self.axes.plot(
            x,
            y,
            color=style.colour,
            linestyle=style.dash,
            marker=style.marker,
            markersize=size,
            markevery=marked,
            markeredgecolor=PAPER,
            markeredgewidth=0.5,
            zorder=3,
        )
        self._tips[self._tag(line, style)] = [tips[at] for at in marked]
        self._drawn.setdefault(style.label, line)
        if deviation is not None and np.isfinite(deviation).any():
            self._spread(style, np.asarray(x), np.asarray(y), np.nan_to_num(deviation))

    def level(self, y: float | None) -> None:
        """Draw a dotted line at a value, if there is one."""
        if y is not None:
            self.axes.axhline(y, linestyle=":", color=SOFT, linewidth=1.1, zorder=1)

    def _spread(self, style: Style, x: np.ndarray, y: np.ndarray, deviation: np.ndarray) -> None:
        if len(x) > 1:
            band = self.axes.fill_between(
                x, y - deviation, y + deviation, color=style.colour, alpha=0.14, linewidth=0
            )
            self._tag(band, style)
            return
        _, caps, bars = self.axes.errorbar(
            x, y, yerr=deviation, fmt="none", ecolor=style.colour, elinewidth=1.2, capsize=3
        )
        for artist in (*caps, *bars):
            self._tag(artist, style)

    def _tag(self, artist: Artist, style: Style) -> str:
        self._count += 1
        name = gid(style.number, self._count)
        artist.set_gid(name)
        return name

    def whole_numbers_along_x(self) -> None:
        """Put ticks of x at whole numbers only."""
        from matplotlib.ticker import MaxNLocator

        self.axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1))

    def bytes_along_x(self) -> None:
        """Make x a logarithmic axis of bytes."""
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

        self.axes.set_xscale("log")
        low, high = self.axes.get_xlim()
        few = high / low < 100
        self.axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
        self.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
        self.axes.xaxis.set_minor_formatter(NullFormatter())

    def save(self, folder: Path, name: str) -> Picture:
        """Write NAME.png and NAME.svg with a legend; return the picture without a legend.

        The same panel gives the same bytes.
        """
        import matplotlib

        with matplotlib.rc_context({"svg.hashsalt": name}), warnings.catch_warnings():
            # PNG files show a box for glyphs that the font lacks.
            warnings.filterwarnings("ignore", "Glyph", UserWarning)
            self._arrange(0.0)
            colours = {colour: variable for colour, (variable, _) in variables().items()}
            svg = inline(self._svg(), name, self.title, colours, self._tips)
            if self._drawn:
                self._legend()
            write_atomic(folder / f"{name}.svg", self._svg())
            content = io.BytesIO()
            self.figure.savefig(content, format="png", dpi=_DPI)
            write_atomic(folder / f"{name}.png", content.getvalue())
        return Picture(name, svg)

    def _svg(self) -> str:
        content = io.StringIO()
        self.figure.savefig(content, format="svg", metadata={"Date": None})
        return content.getvalue()

    def _legend(self) -> None:
        names = [name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…" for name in self._drawn]
        width = _SWATCH + _LETTER * max(map(len, names))
        columns = max(1, int(_WIDTH / width))
        self._arrange(_ROW * ceil(len(names) / columns) + 0.1)
        self.figure.legend(
            list(self._drawn.values()),
            names,
            loc="lower center",
            ncols=columns,
            frameon=False,
            fontsize=8,
            borderpad=0.2,
            columnspacing=1.2,
        )

    def _arrange(self, below: float) -> None:
        """Leave ``below`` inches under the axes for the legend."""
        height = _HEIGHT + below
        self.figure.set_size_inches(_WIDTH, height)
        self.figure.subplots_adjust(
            left=_LEFT / _WIDTH,
            right=1 - _RIGHT / _WIDTH,
            top=1 - _TOP / height,
            bottom=(_BOTTOM + below) / height,
        )


def share_axes(panels: Sequence[Panel]) -> None:
    """Give panels equal limits, so that they can be compared; a single one keeps its own."""
    if len(panels) < 2:
        return
    limits = np.array([[panel.axes.get_xlim(), panel.axes.get_ylim()] for panel in panels])
    (left, right), (bottom, top) = zip(limits[..., 0].min(0), limits[..., 1].max(0), strict=True)
    for panel in panels:
        panel.axes.set_xlim(left, right)
        panel.axes.set_ylim(bottom, top)


def _short(value: float) -> str:
    return readable_bytes(value).replace(".0 ", " ").replace(".00 ", " ")
