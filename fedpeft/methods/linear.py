"""Linear probing: only the head is trained, the baseline of every comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings


class LinearSettings(MethodSettings):
    """Linear probing has no settings."""

    name: Literal["linear"]


class Linear(Method[LinearSettings]):
    """No modification at all."""

    Settings = LinearSettings
    lr = 1e-2
    source = "Gupta et al. 2023, table 2"
    fusable = True

    @property
    def sites(self) -> tuple[str, ...]:
        """None."""
        return ()

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """No parameters besides the head."""
        return {}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Nothing to draw."""
        return {}

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """No modifications."""
        return []
