"""The function from parameters to modifications and a head."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.heads import Labelled
from fedpeft.heads.states import label_weights
from fedpeft.parameters import Realised, TaskParameters
from fedpeft.projection.choice import operator
from fedpeft.projection.operators import Mode


class Realiser:
    """The function of one method and head, with their projections on the backbone's device."""

    def __init__(self, parameters: TaskParameters, backbone: Backbone, mode: Mode):
        self._method, self._head = parameters.method, parameters.head
        self._method_operators, self._head_operators = (
            [operator(projection, backbone.device, backbone.dtype, mode) for projection in fixed]
            for fixed in (self._method.projections(), self._head.projections())
        )
        weights = self._head.weights
        self._labels = label_weights(weights, backbone) if isinstance(weights, Labelled) else None

    def __call__(self, parameters: Mapping[str, Tensor]) -> Realised:
        """Return modifications and heads of parameters ``name -> [G, *shape]``."""
        modifications = self._method.realise(parameters, self._method_operators)
        return Realised(modifications, *self.head(parameters))

    def head(self, parameters: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return weights [G, C, width] and biases [G, C] of heads alone."""
        return self._head.realise(parameters, self._head_operators, self._labels)
