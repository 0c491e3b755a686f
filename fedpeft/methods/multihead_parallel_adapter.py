"""Multi-head parallel adapter of He et al. 2022 (section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method, normal
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import HeadsBottleneck, Modification
from fedpeft.projection.operators import Operator


class MultiheadAdapterSettings(MethodSettings):
    """Settings of the multi-head parallel adapter."""

    name: Literal["multihead_parallel_adapter"]
    length: int = Field(
        30, ge=1, le=MOST, description="width l of each head's bottleneck (paper: 200, 30)"
    )


class MultiheadAdapter(Method[MultiheadAdapterSettings]):
    """Add a bottleneck to every attention head: ``h_i <- h_i + ReLU(q_i P_k^T) P_v``.

    This is prefix tuning with ReLU in place of the gated softmax.
    """

    Settings = MultiheadAdapterSettings
    lr = 1e-3
    source = "He et al. 2022, section 3.3"
    sites = ("heads",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return P_k and P_v of every block, with all heads side by side, [l, width]."""
        shape = (self.settings.length, self.shape.width)
        return {
            f"{layer}.{name}": shape
            for layer in range(self.shape.layers)
            for name in ("keys", "values")
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw from N(0, 0.02^2), as the other adapters do."""
        return normal(generator, self.parameters())

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one change per block."""
        return [
            HeadsBottleneck(
                "heads",
                layer,
                parameters[f"{layer}.keys"],
                parameters[f"{layer}.values"],
                self.shape.heads,
            )
            for layer in range(self.shape.layers)
        ]
