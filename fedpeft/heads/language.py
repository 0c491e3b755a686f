"""The head of a task of text: the backbone's own frozen output embeddings, nothing trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedpeft.heads.base import Head, Weights
from fedpeft.projection.operators import Operator


class _Nothing(Weights):
    """No outputs and no parameters."""

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return no parameters."""
        return {}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return no parameters."""
        return {}

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None,
    ) -> Tensor:
        """Return weights without outputs, [G, 0, width]."""
        first = next(iter(parameters.values()))
        return first.new_zeros(len(first), 0, self.width)


class LanguageHead(Head):
    """A head without parameters: logits come from the output embeddings (``TextModel``)."""

    def __init__(self, width: int):
        super().__init__("text", _Nothing(0, width))

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return no parameters."""
        return {}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return no parameters."""
        return {}

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return weight [G, 0, width] and bias [G, 0]."""
        weight = self.weights.realise(parameters, projections, labels)
        return weight, weight[:, :, 0]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Do not call; ``TextModel.losses`` computes the losses."""
        raise TypeError("a task of text computes its losses in TextModel")
