"""The function from parameters to modifications and a head, of one model or of several.

Projections depend on the seed, so the models of several runs realise their own rows of task
vectors. The realised tensors have the leading axis G and can share a pass through the backbone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from fedpeft.backbones.loading import Backbone
from fedpeft.heads import Labelled
from fedpeft.heads.states import label_weights
from fedpeft.modifications import Modification
from fedpeft.parameters import Realised, TaskParameters
from fedpeft.projection.choice import operator
from fedpeft.projection.operators import Mode, Operator

#: From parameters ``name -> [G, *shape]`` to modifications and heads.
Realise = Callable[[Mapping[str, Tensor]], Realised]


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


class JointRealiser:
    """The functions of several models: the first rows of parameters by the first, and so on.

    Args:
        members: of models with equal forms, see ``form_of``.
        groups: number of task vectors of each. Parameters may hold c consecutive copies of each
            vector; G is then c times their sum.
    """

    def __init__(self, members: Sequence[Realise], groups: Sequence[int]):
        self._members, self._groups = members, [*groups]

    def __call__(self, parameters: Mapping[str, Tensor]) -> Realised:
        """Return modifications and heads of parameters ``name -> [G, *shape]``."""
        copies = len(next(iter(parameters.values()))) // sum(self._groups)
        groups = [copies * rows for rows in self._groups]
        split = {name: value.split(groups) for name, value in parameters.items()}
        parts = [
            realise({name: rows[index] for name, rows in split.items()})
            for index, realise in enumerate(self._members)
        ]
        return Realised(
            [_concatenated(same) for same in zip(*(p.modifications for p in parts), strict=True)],
            torch.cat([part.head_weight for part in parts]),
            torch.cat([part.head_bias for part in parts]),
        )


def form_of(modifications: Sequence[Modification]) -> tuple[Hashable, ...]:
    """Return everything that modifications must have in common to be concatenated.

    These are kinds, places, shapes without the leading axis, and what has no such axis: numbers,
    and projections inside a modification, which are shared by all rows.
    """
    return tuple(
        (type(change), *(_form(getattr(change, field.name)) for field in fields(change)))
        for change in modifications
    )


def _form(value: object) -> Hashable:
    if isinstance(value, Tensor):
        return tuple(value.shape[1:])
    return value.stream if isinstance(value, Operator) else value


def _concatenated(modifications: Sequence[Modification]) -> Modification:
    tensors = [modification.tensors() for modification in modifications]
    joint = {name: torch.cat([each[name] for each in tensors]) for name in tensors[0]}
    return replace(modifications[0], **joint)  # type: ignore[arg-type]
