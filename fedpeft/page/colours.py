"""The palette of all pages and figures, on light and on dark backgrounds."""

from __future__ import annotations

# Hue, lightness and marker together are distinguishable with any color vision; the first six are
# from Okabe and Ito (2008). The page shows the second color of a pair on a dark background.
COLOURS = (
    ("#0072b2", "#4aa8e0"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#2fcf9f"),
    ("#cc79a7", "#e8a3c8"),
    ("#e69f00", "#ffc247"),
    ("#56b4e9", "#9bdcff"),
    ("#6a3d9a", "#b794f4"),
    ("#8c6d1f", "#cbb26a"),
    ("#b2182b", "#ff6b7a"),
    ("#5f6b7a", "#a8b3c0"),
    ("#4d7c0f", "#9bd15a"),
    ("#00a6b8", "#4fd8e6"),
)
INK, SOFT, GRID, PAPER = "#1a1c21", "#6a707b", "#e4e6ea", "#fefefe"


def variables() -> dict[str, tuple[str, str]]:
    """Return color in a figure -> (CSS variable, color on a dark background)."""
    series = {light: (f"--c{at}", dark) for at, (light, dark) in enumerate(COLOURS)}
    return series | {
        INK: ("--ink", "#e8eaed"),
        SOFT: ("--soft", "#9aa1ac"),
        GRID: ("--grid", "#33373f"),
        PAPER: ("--paper", "#1c1f24"),
    }
