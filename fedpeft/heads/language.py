"""A head without trained parameters: the backbone's frozen output embeddings.

Tasks of text predict tokens with it; classification by likelihood predicts the first token of each
class's word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedpeft.heads.base import Head, Parameters, Weights
from fedpeft.projection.operators import Operator
from fedpeft.tasks.base import Kind


class _Nothing(Weights):
    """No outputs and no parameters."""

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return no parameters."""
        return {}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return no parameters."""
        return {}

    def nearest(self, weight: np.ndarray, root: np.ndarray) -> tuple[Parameters, np.ndarray]:
        """Return no parameters, and weights without outputs."""
        return {}, np.zeros((0, self.width))

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
    """A head without parameters: logits come from the output embeddings.

    ``TextModel`` and ``LikelihoodModel`` compute the logits; this head realises empty weights.

    Args:
        width: size of the representation.
        kind: "text" or "classes".
        classes: number of classes, 0 for text.
    """

    def __init__(self, width: int, kind: Kind = "text", classes: int = 0):
        super().__init__(kind, _Nothing(0, width))
        self.classes = classes

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
        """Return the cross-entropy of each example over the C classes, [N].

        Raises:
            TypeError: for text; ``TextModel.losses`` computes its losses.
        """
        if self.kind == "text":
            raise TypeError("a task of text computes its losses in TextModel")
        return super().losses(outputs, labels)
