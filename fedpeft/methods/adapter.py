"""Base of adapters: bottlenecks with biases at some sites of every block.

He et al. 2022, equation 4: h <- h + s ReLU(x W_down) W_up. Adapters differ in which
representation h changes and where x is read (table 1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.families import in_cross, without_cross
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.base import Method, normal
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import AT_SITE, Bottleneck, Modification
from fedpeft.projection.operators import Operator


class AdapterSettings(MethodSettings):
    """Settings of an adapter."""

    bottleneck: int = Field(64, ge=1, le=MOST, description="width m of the bottleneck")


SettingsT = TypeVar("SettingsT", bound=AdapterSettings)


class Adapter(Method[SettingsT]):
    """Bottlenecks at the sites of ``adapted``: h <- h + s (ReLU(x W_down + b_down) W_up + b_up)."""

    @property
    @abstractmethod
    def adapted(self) -> tuple[tuple[str, str], ...]:
        """Pairs (site that changes, ``Modification.reads``) in every block."""

    def __init__(self, settings: SettingsT, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self._places = self.places([site for site, _ in self.adapted])

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return W_down [m, inputs], W_up [width, m] and their biases for every block and site."""
        return {
            f"{layer}.{site}.{name}": shape
            for layer, site in self._places
            for name, shape in self._shapes(site).items()
        }

    def _shapes(self, site: str) -> dict[str, tuple[int, ...]]:
        middle, width, read = self.settings.bottleneck, self.shape.outputs(site), self._reads(site)
        inputs = self.shape.outputs(site if read in AT_SITE else read)
        return {
            "down": (middle, inputs),
            "down_bias": (middle,),
            "up": (width, middle),
            "up_bias": (width,),
        }

    def _reads(self, site: str) -> str:
        """Return what an adapter at a site reads; in a cross-attention, sites of the same."""
        name = without_cross(site)
        reads = dict(self.adapted)[name]
        return reads if name == site or reads in AT_SITE else in_cross(reads)

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw weights from N(0, 0.02^2), biases 0: close to the identity."""
        return normal(generator, self.parameters())

    def scale(self, parameters: Mapping[str, Tensor], layer: int, site: str) -> float | Tensor:
        """Return s: a fixed number, or a trained one, [G, 1]."""
        return 1.0

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one bottleneck per block and site."""
        return [
            self._bottleneck(parameters, layer, site, self._reads(site))
            for layer, site in self._places
        ]

    def _bottleneck(
        self, parameters: Mapping[str, Tensor], layer: int, site: str, reads: str
    ) -> Bottleneck:
        at = f"{layer}.{site}"
        return Bottleneck(
            site,
            layer,
            parameters[f"{at}.down"],
            parameters[f"{at}.down_bias"],
            parameters[f"{at}.up"],
            parameters[f"{at}.up_bias"],
            self.scale(parameters, layer, site),
            "relu",
            reads=reads,
        )
