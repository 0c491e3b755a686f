"""Linear probing: train only the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.methods.settings import MethodSettings
from fedpeft.modifications import Modification
from fedpeft.projection.operators import Operator


class LinearSettings(MethodSettings):
    """Linear probing has no settings."""

    name: Literal["linear"]


class Linear(Method[LinearSettings]):
    """Train only the head, ``y = W h + b``; the backbone does not change."""

    Settings = LinearSettings
    lr = 1e-2
    source = "Gupta et al. 2023, table 2"
    fusable = True
    sites = ()

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return no parameters besides the head's."""
        return {}

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return no modifications."""
        return []
