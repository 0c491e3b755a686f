"""The protocol of a method: names its parameters and turns them into modifications."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

from fedpeft.modifications import Modification
from fedpeft.projection import Stream
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings
from fedpeft.sites import BackboneShape

SettingsT = TypeVar("SettingsT", bound=MethodSettings)


class Method(ABC, Generic[SettingsT]):
    """A method on a backbone of a given shape. Holds no parameters and no weights.

    Attributes:
        lr: default local learning rate: the paper's order of magnitude, then the best of three in a
            small search (MiniLM, 1,000 SST-2 training phrases, another 1,000 held out, 2 epochs).
        source: the paper it follows.
        fusable: whether all of it can be merged into the backbone's weights.
        grouped: whether several task vectors can share a batch; not if whole weights change.
        tokens: how many tokens it adds to a text that take a position of the backbone's.
        around_mask: the setting for which it needs ``representation = "mask"``, if it does.
    """

    Settings: ClassVar[type[MethodSettings]]
    lr: ClassVar[float]
    source: ClassVar[str]
    fusable: ClassVar[bool] = False
    grouped: ClassVar[bool] = True
    tokens: int = 0
    around_mask: str = ""

    def __init__(self, settings: SettingsT, shape: BackboneShape, seed: int):
        self.settings, self.shape, self.seed = settings, shape, seed

    @property
    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """The sites that change, in the order of a block."""

    @abstractmethod
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each trainable parameter, in the order of the task vector."""

    @abstractmethod
    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the parameters every client starts from."""

    @abstractmethod
    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Turn parameters into modifications, row by row.

        Args:
            parameters: ``name -> [G, *shape]``.
            projections: the operator of each of ``self.projections()``.

        Returns:
            Modifications whose tensors have the leading axis G.
        """

    def projections(self) -> Sequence[Stream]:
        """Return the fixed projections that ``realise`` needs."""
        return []

    def read_offset(self, prompts: int) -> int:
        """Return by how much the position that the head reads moves behind ``prompts`` tokens."""
        return prompts


def kaiming(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a matrix [outputs, inputs] Kaiming-uniform with a = sqrt 5: bound 1 / sqrt(inputs)."""
    bound = 1 / sqrt(shape[-1])
    return generator.uniform(-bound, bound, shape)
