"""The parameters of a task: those of a method and its head, as one task vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from fedpeft.errors import UserError, nearest
from fedpeft.heads import Head
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.projection import digest
from fedpeft.randomness import generator
from fedpeft.vector import Layout


@dataclass(frozen=True)
class Realised:
    """Modifications and head weights made from task vectors; leading axis G everywhere.

    A task of text has no head: C is 0.
    """

    modifications: list[Modification]
    head_weight: Tensor  # [G, C, width]
    head_bias: Tensor  # [G, C]


def layout_of(method: Method[Any], head: Head) -> Layout:
    """Return the layout of a method's task vector, the head last."""
    return Layout((*method.parameters().items(), *head.parameters().items()))


class TaskParameters:
    """A method and a head, which define the meaning of a task vector; needs no backbone.

    Attributes:
        layout: layout of the task vector [P].
        numpy_dtype: numpy's name of the task vector's dtype.
        personal: True for numbers that stay at the clients, bool [P].
        shared: layout of the other numbers, which are sent.

    Raises:
        UserError: ``personal`` names an unknown parameter, or all parameters.
    """

    def __init__(
        self, method: Method[Any], head: Head, numpy_dtype: str, personal: Sequence[str] = ()
    ):
        self.method, self.head, self.numpy_dtype = method, head, numpy_dtype
        self.layout = layout_of(method, head)
        kept = [parameter for name in personal for parameter in self._named(name)]
        self.personal, self.shared = self.layout.places(kept), self.layout.without(kept)
        if not self.shared.entries:
            raise UserError(
                f"federation.personal = '{','.join(personal)}': all parameters; expected some to "
                f"be shared"
            )

    def _named(self, personal: str) -> list[str]:
        parameters = self.layout.named(personal)
        if not parameters:
            names = ["head", *(name for name, _ in self.layout.entries)]
            raise UserError(
                f"federation.personal = '{personal}': no such parameter{nearest(personal, names)}"
            )
        return parameters

    @property
    def projection_digest(self) -> str:
        """SHA-256 over all projections of method and head."""
        return digest([*self.method.projections(), *self.head.projections()])

    def initial(self, seed: int) -> np.ndarray:
        """Return the task vector every client starts from, [P]."""
        draw = generator(seed, "init")
        parameters = {**self.method.initial(draw), **self.head.initial(draw)}
        return self.layout.pack(parameters).astype(self.numpy_dtype, copy=False)

    def with_head(self, seed: int, head: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the shared part [S] of the initial task vector with other values of the head."""
        vector, first = self.initial_shared(seed), self.shared.size - self.shared.head_size
        numbers = [head[name].reshape(-1) for name, _ in self.layout.entries if name in head]
        vector[first:] = np.concatenate(numbers)
        return vector

    def initial_shared(self, seed: int) -> np.ndarray:
        """Return the part of the initial task vector that is sent, [S]."""
        return self.initial(seed)[~self.personal]
