"""Method: the protocol that names parameters and turns them into modifications."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods.settings import MethodSettings
from fedpeft.modifications import Modification
from fedpeft.projection import Stream
from fedpeft.projection.operators import Operator

SettingsT = TypeVar("SettingsT", bound=MethodSettings)


class Method(ABC, Generic[SettingsT]):
    """A method on a backbone of a given shape; holds neither parameters nor weights.

    Attributes:
        lr: default local learning rate: the paper's order of magnitude, then the best of three in a
            small search (MiniLM, 1,000 SST-2 training phrases, another 1,000 held out, 2 epochs).
        source: the paper's section it follows.
        fusable: whether every modification can be merged into the backbone's weights; of the class:
            on a backbone with biases.
        grouped: whether several task vectors can share a batch; False if whole weights change.
        sites: the sites that change, in the order of a block.
        tokens: number of tokens it adds to a text that use positions of the backbone.
        around_mask: the setting that requires ``representation = "mask"``; "" if there is none.
    """

    Settings: ClassVar[type[MethodSettings]]
    lr: ClassVar[float]
    source: ClassVar[str]
    fusable: bool = False
    grouped: ClassVar[bool] = True
    tokens: int = 0
    around_mask: str = ""

    def __init__(self, settings: SettingsT, shape: BackboneShape, seed: int):
        self.settings, self.shape, self.seed = settings, shape, seed

    @property
    @abstractmethod
    def sites(self) -> tuple[str, ...]:
        """The sites that change, in the order of a block."""

    def places(
        self, names: Iterable[str], layers: Iterable[int] | None = None
    ) -> list[tuple[int, str]]:
        """Return (block, site) of each site in some blocks; see ``BackboneShape.places``.

        Raises:
            UserError: the backbone has no such site.
        """
        try:
            return self.shape.places(names, layers)
        except UserError as error:
            raise UserError(f"method '{self.settings.name}': {error}") from None

    @abstractmethod
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each trainable parameter, in the order of the task vector."""

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the parameters that every client starts from; zeros by default."""
        return {name: np.zeros(shape) for name, shape in self.parameters().items()}

    @abstractmethod
    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the modifications that the parameters describe.

        Args:
            parameters: ``name -> [G, *shape]``.
            projections: the operator of each of ``self.projections()``.

        Returns:
            Modifications whose tensors have the leading axis G.
        """

    def projections(self) -> Sequence[Stream]:
        """Return the fixed projections that ``realise`` applies."""
        return []

    def read_offset(self, prompts: int) -> int:
        """Return how far ``prompts`` tokens in front of a text move the position the head reads."""
        return prompts


def normal(
    generator: np.random.Generator, shapes: Mapping[str, tuple[int, ...]], std: float = 0.02
) -> dict[str, np.ndarray]:
    """Draw parameters from N(0, std^2); names that end in "bias" are zeros.

    The default is He et al. 2022, released code.
    """
    return {
        name: np.zeros(shape) if name.endswith("bias") else generator.normal(0, std, shape)
        for name, shape in shapes.items()
    }


def kaiming(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw a matrix [outputs, inputs], Kaiming-uniform with a = sqrt(5): bound 1 / sqrt(inputs)."""
    bound = 1 / sqrt(shape[-1])
    return generator.uniform(-bound, bound, shape)
