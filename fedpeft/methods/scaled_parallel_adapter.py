"""The scaled parallel adapter of He et al. 2022 (section 3.3): LoRA's scale and first values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import kaiming
from fedpeft.methods.parallel_adapter import Parallel, ParallelSettings


class ScaledParallelAdapterSettings(ParallelSettings):
    """Settings of the scaled parallel adapter."""

    name: Literal["scaled_parallel_adapter"]
    scale: float = Field(2.0, gt=0, description="s (paper: 4; GLUE 2), or its first value")
    train_scale: bool = Field(False, description="train one s for every block")


class ScaledParallelAdapter(Parallel[ScaledParallelAdapterSettings]):
    """s multiplies the whole up-projection, bias included; the identity at the start."""

    Settings = ScaledParallelAdapterSettings
    lr = 3e-3
    source = "He et al. 2022, section 3.3"

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the adapters', and s [1] of every block if it is trained."""
        scales = [f"{layer}.scale" for layer in range(self.shape.layers)]
        trained = dict.fromkeys(scales if self.settings.train_scale else [], (1,))
        return {**super().parameters(), **trained}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw down Kaiming-uniform; up and biases are 0."""
        found = {}
        for name, shape in self.parameters().items():
            last = name.rpartition(".")[2]
            first = self.settings.scale if last == "scale" else 0.0
            found[name] = kaiming(generator, shape) if last == "down" else np.full(shape, first)
        return found

    def scale(self, parameters: Mapping[str, Tensor], layer: int) -> float | Tensor:
        """Return s."""
        return parameters[f"{layer}.scale"] if self.settings.train_scale else self.settings.scale
