"""Prefix tuning of Li and Liang 2021 (arXiv 2101.00190)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method, normal
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import KeyValuePrefix
from fedpeft.projection.operators import Operator


class PrefixSettings(MethodSettings):
    """Settings of prefix tuning."""

    name: Literal["prefix"]
    length: int = Field(
        32, ge=1, le=MOST, description="length l of the prefix (paper: 200; GLUE 32)"
    )
    hidden: int = Field(
        0,
        ge=0,
        le=MOST,
        description="width of an MLP that generates the prefix (papers: 800); 0 = train the prefix "
        "directly; with an MLP, clients send all of its weights",
    )


class Prefix(Method[PrefixSettings]):
    """Prepend l trained keys and values in every head: ``softmax(q [P_k, K]^T) [P_v, V]``.

    The positions of the text do not shift, and every token attends to the prefix.
    """

    Settings = PrefixSettings
    lr = 1e-2
    source = "Li and Liang 2021, section 4"
    sites = ("kv",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return P_k and P_v [l, width] of every block, or the MLP that generates them."""
        length, width, hidden = self.settings.length, self.shape.width, self.settings.hidden
        if not hidden:
            return {
                f"{layer}.{name}": (length, width)
                for layer in range(self.shape.layers)
                for name in ("prefix_keys", "prefix_values")
            }
        outputs = 2 * self.shape.layers * width
        return {
            "embedding": (length, width),
            "hidden.weight": (hidden, width),
            "hidden.bias": (hidden,),
            "out.weight": (outputs, hidden),
            "out.bias": (outputs,),
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw from N(0, 0.02^2); biases are 0."""
        return normal(generator, self.parameters())

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one prefix per block."""
        prefix = self._by_mlp(parameters) if self.settings.hidden else parameters
        return [
            KeyValuePrefix(
                "kv", layer, prefix[f"{layer}.prefix_keys"], prefix[f"{layer}.prefix_values"]
            )
            for layer in range(self.shape.layers)
        ]

    def _by_mlp(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the keys and values of all blocks: out(tanh(hidden(embedding)))."""
        inner = parameters["embedding"] @ parameters["hidden.weight"].transpose(-1, -2)
        inner = (inner + parameters["hidden.bias"][:, None]).tanh()  # [G, l, hidden]
        flat = inner @ parameters["out.weight"].transpose(-1, -2) + parameters["out.bias"][:, None]
        blocks = flat.unflatten(-1, (self.shape.layers, 2, self.shape.width)).movedim(1, 3)
        return {
            f"{layer}.prefix_{name}": blocks[:, layer, place]
            for layer in range(self.shape.layers)
            for place, name in enumerate(("keys", "values"))
        }
