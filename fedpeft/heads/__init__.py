"""Heads: how the weights of the output layer follow from the trained numbers, one way a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.heads.base import Head, Weights
from fedpeft.heads.full import Full
from fedpeft.heads.labelled import Labelled
from fedpeft.heads.language import LanguageHead
from fedpeft.heads.low_rank import LowRank
from fedpeft.heads.projected import Projected
from fedpeft.tasks.base import TaskInfo

if TYPE_CHECKING:
    from fedpeft.experiment.settings import HeadSection

LABELS_FROM = 100  # from this many named classes on, small heads start from labels

__all__ = [
    "Full",
    "Head",
    "Labelled",
    "LanguageHead",
    "LowRank",
    "Projected",
    "Weights",
    "build_head",
]


def build_head(
    info: TaskInfo,
    width: int,
    settings: HeadSection,
    seed: int,
    representation: str,
    apart: bool = False,
) -> Head:
    """Return the head of an experiment.

    Args:
        info: description of the task.
        width: size of the representation.
        settings: the section ``head``.
        seed: seed of the projections.
        representation: "mask", "cls", "mean", "unit" or "last".
        apart: whether the texts of pairs pass on their own.

    Raises:
        UserError: the head has no fewer numbers than a full one, or it needs labels and the task
            has none.
    """
    if info.kind == "text":
        return LanguageHead(width)
    if settings.kind == "likelihood":
        return LanguageHead(width, "classes", info.classes)
    small, labels = bool(settings.rank or settings.d), settings.labels
    if labels is None:
        named = info.kind == "classes" and all(map(_has_letter, info.labels))
        labels = small and named and info.classes >= LABELS_FROM and not apart
    width *= 1 + apart
    weights = _weights(info.classes, width, settings.d, settings.rank, seed)
    if labels:
        if info.kind == "score":
            raise UserError("head.labels = true: a score has no classes; leave it out")
        weights = Labelled(weights, info.labels, "mean" if info.kind == "tags" else representation)
    return Head(info.kind, weights, representation == "unit" and info.kind != "tags", apart)


def _has_letter(label: str) -> bool:
    return any(map(str.isalpha, label))


def _weights(classes: int, width: int, d: int, rank: int, seed: int) -> Weights:
    if d:
        return Projected(classes, width, d, seed)
    return LowRank(classes, width, rank) if rank else Full(classes, width)
