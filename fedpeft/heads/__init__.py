"""Heads: how the weights of the output layer follow from the trained numbers, one way a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpeft.heads.base import Head, Weights
from fedpeft.heads.full import Full
from fedpeft.heads.low_rank import LowRank
from fedpeft.heads.projected import Projected
from fedpeft.tasks.base import Kind

if TYPE_CHECKING:
    from fedpeft.experiment.settings import HeadSection

MANY = 50  # from this many classes on, the default head has a low rank
RANK = 16  # of the default head with MANY classes

__all__ = ["MANY", "RANK", "Full", "Head", "LowRank", "Projected", "Weights", "build_head"]


def build_head(kind: Kind, classes: int, width: int, settings: HeadSection, seed: int) -> Head:
    """Return the head of an experiment.

    Args:
        kind: kind of the task.
        classes: number of outputs C.
        width: size of the representation.
        settings: the section ``head``.
        seed: seed of the projections.

    Raises:
        UserError: the head has no fewer numbers than a full one.
    """
    return Head(kind, _weights(classes, width, settings, seed))


def _weights(classes: int, width: int, settings: HeadSection, seed: int) -> Weights:
    if settings.d:
        return Projected(classes, width, settings.d, seed)
    rank = settings.rank
    if rank is None:
        rank = RANK if classes >= MANY and width > RANK * 2 else 0
    return LowRank(classes, width, rank) if rank else Full(classes, width)
