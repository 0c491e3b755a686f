"""Full fine-tuning: every weight of the encoder is trained, the baseline of every comparison.

As everywhere here there is no dropout. What is trained is the change from the pretrained weights,
so ``local.weight_decay`` draws towards them, not towards 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.modifications import Modification, WeightChange
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings


class FullSettings(MethodSettings):
    """Full fine-tuning has no settings."""

    name: Literal["full"]


class Full(Method[FullSettings]):
    """W + change for every weight W; a change is 0 at the start and what travels."""

    Settings = FullSettings
    lr = 5e-5
    source = "Devlin et al. 2019, section 4"
    fusable = True
    grouped = False
    sites = ("weights",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight of the backbone."""
        return dict(self.shape.weights)

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Zeros."""
        return {name: np.zeros(shape) for name, shape in self.parameters().items()}

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the change of every weight."""
        return [WeightChange("weights", 0, name, parameters[name]) for name in self.shape.weights]
