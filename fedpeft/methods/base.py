"""The protocol of a method: names its parameters and turns them into modifications."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

from fedpeft.modifications import Modification
from fedpeft.projection import Projection
from fedpeft.settings import MethodSettings

SettingsT = TypeVar("SettingsT", bound=MethodSettings)


@dataclass(frozen=True)
class BackboneShape:
    """The sizes a method needs to know of a backbone."""

    family: str
    layers: int
    width: int
    intermediate: int
    parameters: int = 0  # of the whole backbone


class Method(ABC, Generic[SettingsT]):
    """A method on a backbone of a given shape. Holds no parameters and no weights.

    ``lr`` is the default local learning rate, ``source`` the paper it follows.
    """

    Settings: ClassVar[type[MethodSettings]]
    lr: ClassVar[float]
    sites: ClassVar[str]
    source: ClassVar[str]

    def __init__(self, settings: SettingsT, shape: BackboneShape, seed: int):
        self.settings, self.shape, self.seed = settings, shape, seed

    @abstractmethod
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each trainable parameter, in the order of the task vector."""

    @abstractmethod
    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the parameters every client starts from."""

    @abstractmethod
    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Tensor]
    ) -> list[Modification]:
        """Turn parameters into modifications, row by row.

        Args:
            parameters: ``name -> [G, *shape]``.
            projections: for each of ``self.projections()`` its transpose, [columns, rows].

        Returns:
            Modifications whose tensors have the leading axis G.
        """

    def projections(self) -> list[Projection]:
        """Return the fixed projections that ``realise`` needs."""
        return []

    def read_offset(self, prompts: int) -> int:
        """Return by how much the position that the head reads moves behind ``prompts`` tokens."""
        return prompts
