"""Sizes of a method in ascending order, a bisection over them, and the figure of their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from simulations.report.style import COLOURS
from simulations.study.cells import Cell

METHOD, SIZE = "method", "size"  # labels of the cells


@dataclass(frozen=True)
class Ladder:
    """A method and its sizes.

    Attributes:
        method: label of the method.
        sizes: label of a size -> the cells of its seeds, in ascending order of the size.
    """

    method: str
    sizes: dict[str, list[Cell]] = field(default_factory=dict)


def ladders_of(cells: Sequence[Cell]) -> dict[str, Ladder]:
    """Return the ladders of a study's cells by method, in the order of the study.

    Raises:
        UserError: a cell lacks a label.
    """
    ladders: dict[str, Ladder] = {}
    for cell in cells:
        if not {METHOD, SIZE} <= cell.labels.keys():
            raise UserError(
                f"cell '{cell.name}': expected labels '{METHOD}' and '{SIZE}', got "
                f"{', '.join(cell.labels)}"
            )
        ladder = ladders.setdefault(cell.labels[METHOD], Ladder(cell.labels[METHOD]))
        ladder.sizes.setdefault(cell.labels[SIZE], []).append(cell)
    return ladders


def first_passing(count: int, passes: Callable[[int], bool]) -> int | None:
    """Return the smallest index in [0, count) that passes, by bisection; None if none does.

    Asks for about log2(count + 1) of them, and is right if all after a passing one pass, too.
    """
    low, high = 0, count  # all below low fail; high passes, or is count
    while low < high:
        middle = (low + high) // 2
        if passes(middle):
            high = middle
        else:
            low = middle + 1
    return low if low < count else None


def draw(table: Sequence[dict[str, Any]], target: float, path: Path) -> None:
    """Draw score against numbers of each method in a table of ``d90.rows_of``, and the target."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in table))
    for number, method in enumerate(methods):
        rows = [row for row in table if row["method"] == method]
        axes.errorbar(
            [row["numbers"] for row in rows],
            [row["score"] for row in rows],
            [row["deviation"] or 0 for row in rows],
            color=COLOURS[number][0],
            marker="osD^v<>PX"[number % 9],
            capsize=3,
            label=method,
        )
    axes.axhline(target, color="#6a707b", linestyle="--", linewidth=1)
    axes.annotate(
        "target", (0, target), xycoords=("axes fraction", "data"), xytext=(4, 3),
        textcoords="offset points", fontsize=8,
    )  # fmt: skip
    axes.set(xscale="log", xlabel="trained numbers without the head", ylabel="score")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    with plt.rc_context({"svg.hashsalt": "fedpeft", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
