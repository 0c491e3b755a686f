"""MAM, mix-and-match: a prefix and a scaled parallel adapter at the FFN (He et al. 2022, 4.6).

The prefix itself is trained; the released code makes it by an MLP, which would travel (``prefix``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.methods.prefix import Prefix, PrefixSettings
from fedpeft.methods.scaled_parallel_adapter import (
    ScaledParallelAdapter,
    ScaledParallelAdapterSettings,
)
from fedpeft.modifications import Modification
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings
from fedpeft.sites import BackboneShape


class MAMSettings(MethodSettings):
    """Settings of MAM."""

    name: Literal["mam"]
    length: int = Field(16, ge=1, description="length l of the prefix (paper: 30; GLUE 16)")
    bottleneck: int = Field(16, ge=1, description="width m of the adapter (paper: 512; GLUE 16)")
    scale: float = Field(2.0, gt=0, description="s of the adapter (paper: 4; GLUE 2)")


class MAM(Method[MAMSettings]):
    """Both, side by side."""

    Settings = MAMSettings
    lr = 1e-3
    source = "He et al. 2022, section 4.6"

    def __init__(self, settings: MAMSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        prefix = PrefixSettings(name="prefix", length=settings.length)
        adapter = ScaledParallelAdapterSettings(
            name="scaled_parallel_adapter", bottleneck=settings.bottleneck, scale=settings.scale
        )
        self._parts: tuple[Method, ...] = (
            Prefix(prefix, shape, seed),
            ScaledParallelAdapter(adapter, shape, seed),
        )

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites of both."""
        return tuple(site for part in self._parts for site in part.sites)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the parameters of both."""
        return {name: shape for part in self._parts for name, shape in part.parameters().items()}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw both."""
        return {
            name: value for part in self._parts for name, value in part.initial(generator).items()
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the modifications of both."""
        return [change for part in self._parts for change in part.realise(parameters, ())]
