"""What a frozen backbone scores without federated training: the simplest thing to do instead.

A logistic or ridge regression of scikit-learn on what the backbone makes of all training texts, in
one place. Texts are read as the makers of the backbone read them. For pairs of texts there is
another line: the same regression on their cosine alone. ``simulations.report.frozen_scores``
measures the lines; here is what a run's folder holds of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from fedpeft.files import read_object

FILE = "frozen.json"


class Line(TypedDict):
    """A way to use the frozen backbone, and its score on the evaluation examples."""

    name: str
    score: float


def lines_of(run: Path) -> list[Line]:
    """Return the lines that a run's folder holds; [] if they were not measured."""
    return list(read_object(run / FILE).get("lines", []))
