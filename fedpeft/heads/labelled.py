"""A head that starts from the names of the classes, as the frozen backbone represents them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from fedpeft.heads.base import Parameters, Weights
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.vector import HEAD


class Labelled(Weights):
    """Add s * E to the weights of another head; s is trained, E [C, width] is fixed.

    E comes from the labels and the frozen backbone alone (``heads.states``), so it is never sent
    and the layout is independent of it.

    Args:
        rest: the other head's weights, which start at or near 0.
        labels: names of the outputs.
        representation: "mask", "cls", "mean", "unit" or "last", as for the task's texts.
    """

    def __init__(self, rest: Weights, labels: Sequence[str], representation: str):
        super().__init__(rest.classes, rest.width)
        self.rest, self.representation = rest, representation
        self.labels = tuple(labels)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of the other head's parameters and of s."""
        return {**self.rest.parameters(), f"{HEAD}scale": (1,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return the other head's initial parameters; s is 1."""
        return {**self.rest.initial(generator), f"{HEAD}scale": np.ones(1)}

    def nearest(self, weight: np.ndarray, root: np.ndarray) -> tuple[Parameters, np.ndarray]:
        """Return the other head's parameters, and s = 0: E is not known where there is no data."""
        parameters, weight = self.rest.nearest(weight, root)
        return {**parameters, f"{HEAD}scale": np.zeros(1)}, weight

    def projections(self) -> list[Projection]:
        """Return the other head's projections."""
        return self.rest.projections()

    def realise(
        self,
        parameters: Mapping[str, Tensor],
        projections: Sequence[Operator],
        labels: Tensor | None,
    ) -> Tensor:
        """Return the other head's weights + s * E, [G, C, width].

        Raises:
            ValueError: E is missing.
        """
        if labels is None:
            raise ValueError("a head of labels needs their hidden states")
        rest = self.rest.realise(parameters, projections, None)
        return rest + parameters[f"{HEAD}scale"][:, :, None] * labels
