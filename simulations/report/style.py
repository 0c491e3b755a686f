"""Style of each curve in all figures: color of its method, marker, and dash."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedpeft.page.colours import COLOURS
from simulations.report.summary import CURVE, HUE

if TYPE_CHECKING:
    import pandas as pd

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_DASHES = ("-", "--", ":", "-.")
_STEP = 5  # markers between two series of one color; coprime to the number of markers


@dataclass(frozen=True)
class Style:
    """Style of a curve: a series, or those that differ in their facet alone."""

    number: int  # index of the curve in the study
    label: str
    colour: str
    marker: str
    dash: str

    @property
    def variable(self) -> str:
        """Name of the CSS variable of the color."""
        return f"--c{[light for light, _ in COLOURS].index(self.colour)}"

    @property
    def outline(self) -> str:
        """The marker as an SVG path in a box from -1 to 1."""
        from matplotlib.markers import MarkerStyle

        style = MarkerStyle(self.marker)
        shape = style.get_path().transformed(style.get_transform())
        scale = 0.5 if self.marker != "o" else 0.45
        parts = []
        for polygon in shape.to_polygons():
            corners = np.asarray(polygon) / scale
            points = " L".join(f"{x:.2f},{-y:.2f}" for x, y in corners.tolist())
            parts.append(f"M{points}Z")
        return " ".join(parts)


def styles_of(frame: pd.DataFrame) -> dict[str, Style]:
    """Return curve -> style, in the order of the study.

    Args:
        frame: see ``summary.labelled``. Hues beyond COLOURS reuse colors with other markers.
    """
    rows = frame[[CURVE, HUE]].drop_duplicates(CURVE)
    hues = {hue: at for at, hue in enumerate(rows[HUE].unique())}
    seen: dict[str, int] = {}
    styles = {}
    for number, (label, hue) in enumerate(rows.itertuples(index=False)):
        colour, nth = hues[hue], seen.get(hue, 0)
        seen[hue] = nth + 1
        marker = colour + colour // len(COLOURS) + _STEP * nth
        styles[label] = Style(
            number,
            label,
            COLOURS[colour % len(COLOURS)][0],
            _MARKERS[marker % len(_MARKERS)],
            _DASHES[nth % len(_DASHES)],
        )
    return styles
