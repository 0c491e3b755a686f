"""Method and head: what a task vector's numbers mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedpeft.errors import UserError, nearest
from fedpeft.heads import Head
from fedpeft.methods.base import Method
from fedpeft.projection import digest
from fedpeft.randomness import generator
from fedpeft.vector import Layout


def layout_of(method: Method[Any], head: Head) -> Layout:
    """Return the layout of a method's task vector, the head last."""
    return Layout((*method.parameters().items(), *head.parameters().items()))


class Trainable:
    """Method and head: what a task vector's numbers mean; nothing here needs the backbone.

    Attributes:
        layout: of the task vector [P].
        numpy_dtype: the task vector's dtype by numpy's name.
        personal: which numbers stay at each client, bool [P].
        shared: layout of the others, which travel.

    Raises:
        UserError: ``personal`` names no parameter, or leaves nothing that travels.
    """

    def __init__(
        self, method: Method[Any], head: Head, numpy_dtype: str, personal: Sequence[str] = ()
    ):
        self.method, self.head, self.numpy_dtype = method, head, numpy_dtype
        self.layout = layout_of(method, head)
        own = [name for each in personal for name in self._named(each)]
        self.personal, self.shared = self.layout.places(own), self.layout.without(own)
        if not self.shared.entries:
            raise UserError(
                f"federation.personal = '{','.join(personal)}': all parameters; expected some to "
                f"be shared"
            )

    def _named(self, personal: str) -> list[str]:
        found = self.layout.named(personal)
        if not found:
            names = ["head", *(name for name, _ in self.layout.entries)]
            raise UserError(
                f"federation.personal = '{personal}': no such parameter{nearest(personal, names)}"
            )
        return found

    @property
    def projection_digest(self) -> str:
        """SHA-256 that pins every projection of method and head."""
        return digest([*self.method.projections(), *self.head.projections()])

    def initial(self, seed: int) -> np.ndarray:
        """Return the task vector every client starts from, [P]."""
        draw = generator(seed, "init")
        parameters = {**self.method.initial(draw), **self.head.initial(draw)}
        return self.layout.pack(parameters).astype(self.numpy_dtype)
