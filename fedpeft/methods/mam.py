"""MAM, the mix-and-match adapter of He et al. 2022 (section 4.6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.base import Method
from fedpeft.methods.prefix import Prefix, PrefixSettings
from fedpeft.methods.scaled_parallel_adapter import (
    ScaledParallelAdapter,
    ScaledParallelAdapterSettings,
)
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Modification
from fedpeft.projection.operators import Operator


class MAMSettings(MethodSettings):
    """Settings of MAM."""

    name: Literal["mam"]
    length: int = Field(
        16, ge=1, le=MOST, description="length l of the prefix (paper: 30; GLUE 16)"
    )
    bottleneck: int = Field(
        16, ge=1, le=MOST, description="width m of the adapter (paper: 512; GLUE 16)"
    )
    scale: float = Field(2.0, gt=0, description="scale s of the adapter (paper: 4; GLUE 2)")


class MAM(Method[MAMSettings]):
    """Combine ``softmax(q [P_k, K]^T) [P_v, V]`` with ``h <- h + s ReLU(x W_down) W_up``.

    That is prefix tuning and a scaled parallel adapter at the FFN. The prefix is trained directly;
    the released code trains an MLP that generates it, whose weights clients would have to send.
    """

    Settings = MAMSettings
    lr = 1e-3
    source = "He et al. 2022, section 4.6"

    def __init__(self, settings: MAMSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.places(("kv", "ffn_out"))  # raises if the backbone has no such site
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
        """See Method."""
        return tuple(site for part in self._parts for site in part.sites)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the parameters of both."""
        return {name: shape for part in self._parts for name, shape in part.parameters().items()}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the parameters of both."""
        return {
            name: value for part in self._parts for name, value in part.initial(generator).items()
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the modifications of both."""
        return [change for part in self._parts for change in part.realise(parameters, ())]
