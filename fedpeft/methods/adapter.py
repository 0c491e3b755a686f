"""What all adapters share: bottlenecks with biases at some sites of every block.

He et al. 2022, equation 4: h <- h + s f(x W_down) W_up, with f = ReLU; where x comes from and
which h changes is what tells adapters apart (their table 1).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.modifications import Bottleneck, Modification
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings

STD = 0.02  # He et al. 2022, released code


class AdapterSettings(MethodSettings):
    """Settings of an adapter."""

    bottleneck: int = Field(64, ge=1, description="width m of the bottleneck")


SettingsT = TypeVar("SettingsT", bound=AdapterSettings)


class Adapter(Method[SettingsT]):
    """Bottlenecks at ``places``: pairs of the site that changes and what is read."""

    @property
    @abstractmethod
    def places(self) -> tuple[tuple[str, str], ...]:
        """Pairs (site, what ``Modification.reads`` says) in every block."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that change."""
        return tuple(site for site, _ in self.places)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return down [m, width], up [width, m] and their biases for every block and site."""
        width, middle = self.shape.width, self.settings.bottleneck
        shapes = {
            "down": (middle, width),
            "down_bias": (middle,),
            "up": (width, middle),
            "up_bias": (width,),
        }
        return {
            f"{layer}.{site}.{name}": shape
            for layer in range(self.shape.layers)
            for site in self.sites
            for name, shape in shapes.items()
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw weights N(0, 0.02), biases 0: close to the identity."""
        return {
            name: np.zeros(shape) if name.endswith("bias") else generator.normal(0, STD, shape)
            for name, shape in self.parameters().items()
        }

    def scale(self, parameters: Mapping[str, Tensor], layer: int) -> float | Tensor:
        """Return s: a number, or a trained one [G, 1]."""
        return 1.0

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the bottlenecks."""
        return [
            self._bottleneck(parameters, layer, site, reads)
            for layer in range(self.shape.layers)
            for site, reads in self.places
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
            self.scale(parameters, layer),
            "relu",
            reads=reads,
        )
