"""LoRA: low-rank changes of a block's matrices (Hu et al. 2021, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method, kaiming
from fedpeft.modifications import LowRank, Modification
from fedpeft.projection.operators import Operator
from fedpeft.settings import MatrixSites, MethodSettings
from fedpeft.sites import BackboneShape


class LoRASettings(MethodSettings):
    """Settings of LoRA."""

    name: Literal["lora"]
    rank: int = Field(1, ge=1, description="rank r of each change")
    alpha: float = Field(8.0, gt=0, description="the change is scaled by alpha / r")
    # The paper's choice, section 4.2.
    sites: MatrixSites = Field(
        ("q", "v"), description="matrices that change, some of q, k, v, o and ffn (both of its)"
    )


class LoRA(Method[LoRASettings]):
    """h = W x + (alpha / r) B A x; B = 0 makes it the identity at the start."""

    Settings = LoRASettings
    lr = 1e-3
    source = "Hu et al. 2021, section 4.1"
    fusable = True

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites of the settings, in the order of a block."""
        return tuple(matrices(self.settings.sites, self.shape))

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return A [r, inputs] and B [outputs, r] of every matrix."""
        return low_rank_shapes(self.settings.sites, self.settings.rank, self.shape)

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw A Kaiming-uniform (a = sqrt 5, i.e. bound 1 / sqrt(inputs)), B = 0."""
        found = {}
        for name, shape in self.parameters().items():
            is_down = name.endswith("A")
            found[name] = kaiming(generator, shape) if is_down else np.zeros(shape)
        return found

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one low-rank change for every matrix."""
        scale = self.settings.alpha / self.settings.rank
        return low_rank_changes(parameters, self.sites, self.shape.layers, scale)


def matrices(sites: Sequence[str], shape: BackboneShape) -> dict[str, tuple[int, int]]:
    """Return (inputs, outputs) of the matrix at each site, in the order of a block."""
    width, middle = shape.width, shape.intermediate
    square = (width, width)
    of_name = {
        "q": {"q": square},
        "k": {"k": square},
        "v": {"v": square},
        "o": {"attn_out": square},
        "ffn": {"ffn_mid": (width, middle), "ffn_out": (middle, width)},
    }
    return {
        site: sizes
        for name, each in of_name.items()
        if name in sites
        for site, sizes in each.items()
    }


def low_rank_shapes(
    sites: Sequence[str], rank: int, shape: BackboneShape
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of A [r, inputs] and B [outputs, r] for every block and site."""
    return {
        f"{layer}.{site}.{name}": each
        for layer in range(shape.layers)
        for site, (inputs, outputs) in matrices(sites, shape).items()
        for name, each in (("A", (rank, inputs)), ("B", (outputs, rank)))
    }


def low_rank_changes(
    parameters: Mapping[str, Tensor], sites: Sequence[str], layers: int, scale: float
) -> list[Modification]:
    """Return the changes of named A and B."""
    return [
        LowRank(
            site, layer, parameters[f"{layer}.{site}.A"], parameters[f"{layer}.{site}.B"], scale
        )
        for layer in range(layers)
        for site in sites
    ]
