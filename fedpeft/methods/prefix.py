"""Prefix tuning: trained keys and values in front of the text's, in every block.

Li and Liang 2021 (arXiv 2101.00190). Positions do not shift, and every token attends the prefix.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.adapter import STD
from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import KeyValuePrefix
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings


class PrefixSettings(MethodSettings):
    """Settings of prefix tuning."""

    name: Literal["prefix"]
    length: int = Field(32, ge=1, description="length l of the prefix (paper: 200; GLUE 32)")
    hidden: int = Field(
        0,
        ge=0,
        description="width of the MLP that makes the prefix (papers: 800); 0 = none, the prefix "
        "itself is trained; all of the MLP would travel",
    )


class Prefix(Method[PrefixSettings]):
    """softmax(q [P_k, K]^T) [P_v, V] in every head."""

    Settings = PrefixSettings
    lr = 1e-2
    source = "Li and Liang 2021, section 4"
    sites = ("kv",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return P_k and P_v [l, width] of every block, or the embedding and MLP that make them."""
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
        """Draw N(0, 0.02), biases 0."""
        return {
            name: np.zeros(shape) if name.endswith("bias") else generator.normal(0, STD, shape)
            for name, shape in self.parameters().items()
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the prefix of every block."""
        made = self._by_mlp(parameters) if self.settings.hidden else parameters
        return [
            KeyValuePrefix(
                "kv", layer, made[f"{layer}.prefix_keys"], made[f"{layer}.prefix_values"]
            )
            for layer in range(self.shape.layers)
        ]

    def _by_mlp(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """embedding -> hidden -> tanh -> keys and values of all blocks."""
        inner = parameters["embedding"] @ parameters["hidden.weight"].transpose(-1, -2)
        inner = (inner + parameters["hidden.bias"][:, None]).tanh()  # [G, l, hidden]
        flat = inner @ parameters["out.weight"].transpose(-1, -2) + parameters["out.bias"][:, None]
        blocks = flat.unflatten(-1, (self.shape.layers, 2, self.shape.width)).movedim(1, 3)
        return {
            f"{layer}.prefix_{name}": blocks[:, layer, place]
            for layer in range(self.shape.layers)
            for place, name in enumerate(("keys", "values"))
        }
