"""Heads: how the weights of the output layer follow from the trained numbers, one way a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.heads.base import Head, Weights
from fedpeft.heads.full import Full
from fedpeft.heads.labelled import Labelled
from fedpeft.heads.low_rank import LowRank
from fedpeft.heads.projected import Projected
from fedpeft.tasks.base import TaskInfo

if TYPE_CHECKING:
    from fedpeft.experiment.settings import HeadSection

MANY = 100  # from this many named classes on, the default head is small
RANK = 24  # of the default head with MANY classes

__all__ = [
    "MANY",
    "RANK",
    "Full",
    "Head",
    "Labelled",
    "LowRank",
    "Projected",
    "Weights",
    "build_head",
]


def build_head(
    info: TaskInfo, width: int, settings: HeadSection, seed: int, representation: str
) -> Head:
    """Return the head of an experiment.

    Args:
        info: description of the task.
        width: size of the representation.
        settings: the section ``head``.
        seed: seed of the projections.
        representation: "mask", "cls" or "mean".

    Raises:
        UserError: the head has no fewer numbers than a full one, or it needs labels and the task
            has none.
    """
    small = info.kind == "classes" and info.classes >= MANY and all(map(_has_letter, info.labels))
    rank, labels = settings.rank, settings.labels
    if rank is None:
        rank = RANK if small and not settings.d else 0
    if labels is None:
        labels = small and bool(rank or settings.d)
    weights = _weights(info.classes, width, settings.d, rank, seed)
    if labels:
        if info.kind == "score":
            raise UserError("head.labels = true: a score has no classes; leave it out")
        weights = Labelled(weights, info.labels, "mean" if info.kind == "tags" else representation)
    return Head(info.kind, weights)


def _has_letter(label: str) -> bool:
    return any(map(str.isalpha, label))


def _weights(classes: int, width: int, d: int, rank: int, seed: int) -> Weights:
    if d:
        return Projected(classes, width, d, seed)
    return LowRank(classes, width, rank) if rank else Full(classes, width)
