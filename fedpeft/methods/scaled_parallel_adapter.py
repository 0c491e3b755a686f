"""Scaled parallel adapter of He et al. 2022 (section 3.3), with LoRA's scale and start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.families import CROSS
from fedpeft.methods.adapter import Adapter
from fedpeft.methods.base import kaiming
from fedpeft.methods.parallel_adapter import Parallel, ParallelSettings


class ScaledParallelAdapterSettings(ParallelSettings):
    """Settings of the scaled parallel adapter."""

    name: Literal["scaled_parallel_adapter"]
    scale: float = Field(2.0, gt=0, description="scale s, or its initial value (paper: 4; GLUE 2)")
    train_scale: bool = Field(False, description="train one s per adapter")


class ScaledParallelAdapter(Parallel[ScaledParallelAdapterSettings]):
    """Insert a scaled bottleneck parallel to a sub-layer: ``h <- h + s ReLU(x W_down) W_up``.

    x is the sub-layer's input, h its output; s also scales the bias of W_up. W_up = 0 at the start,
    so training starts from the pretrained backbone.
    """

    Settings = ScaledParallelAdapterSettings
    lr = 3e-3
    source = "He et al. 2022, section 3.3"

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the adapters' parameters, and s [1] of every adapter if trained."""
        scales = [self._scale_of(layer, site) for layer, site in self._places]
        trained = dict.fromkeys(scales if self.settings.train_scale else [], (1,))
        return {**super().parameters(), **trained}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw W_down Kaiming-uniform; W_up and biases are 0."""
        values = super(Adapter, self).initial(generator)
        for name, shape in self.parameters().items():
            if name.endswith(".down"):
                values[name] = kaiming(generator, shape)
            elif name.endswith(".scale"):
                values[name] = np.full(shape, self.settings.scale)
        return values

    def scale(self, parameters: Mapping[str, Tensor], layer: int, site: str) -> float | Tensor:
        """See Adapter."""
        if not self.settings.train_scale:
            return self.settings.scale
        return parameters[self._scale_of(layer, site)]

    def _scale_of(self, layer: int, site: str) -> str:
        """Return the name of an adapter's s."""
        return f"{layer}.{CROSS if site.startswith(CROSS) else ''}scale"
