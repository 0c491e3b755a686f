"""LoRA: low-rank changes of weight matrices (Hu et al. 2021, arXiv 2106.09685)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.base import Method, kaiming
from fedpeft.methods.settings import MOST, Blocks, MatrixSites, MethodSettings, chosen_blocks
from fedpeft.modifications import LowRank, Modification
from fedpeft.projection.operators import Operator


class LoRASettings(MethodSettings):
    """Settings of LoRA."""

    name: Literal["lora"]
    rank: int = Field(1, ge=1, le=MOST, description="rank r of each change")
    alpha: float = Field(8.0, gt=0, description="the change is scaled by alpha / r")
    sites: MatrixSites = Field(
        ("q", "v"),  # section 4.2
        description="matrices to change, some of q, k, v, o, ffn (all matrices of the FFN)",
    )
    layers: Blocks = Field("all", description="blocks to change: all | upper half | 6-11 | 0,5")


class LoRA(Method[LoRASettings]):
    """Add a low-rank change to weight matrices: ``h = W x + (alpha / r) B A x``.

    B = 0 at the start, so training starts from the pretrained backbone.
    """

    Settings = LoRASettings
    lr = 1e-3
    source = "Hu et al. 2021, section 4.1"
    fusable = True

    def __init__(self, settings: LoRASettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        layers = chosen_blocks(settings.layers, shape.layers)
        self._places = self.places(matrices(settings.sites, shape), layers)

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return A [r, inputs] and B [outputs, r] of every matrix."""
        return low_rank_shapes(self._places, self.settings.rank, self.shape)

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw A Kaiming-uniform (a = sqrt(5)); B = 0."""
        return {
            name: kaiming(generator, shape) if name.endswith("A") else np.zeros(shape)
            for name, shape in self.parameters().items()
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one low-rank change per matrix."""
        scale = self.settings.alpha / self.settings.rank
        return low_rank_changes(parameters, self._places, scale)


def matrices(names: Sequence[str], shape: BackboneShape) -> list[str]:
    """Return the sites of matrices: "o" is W_o, "ffn" all matrices of the feed-forward network."""
    gated = ["ffn_factor"] if "ffn_factor" in shape.sites.stacks[0].sites else []
    several = {"o": ["attn_out"], "ffn": ["ffn_mid", *gated, "ffn_out"]}
    return [site for name in names for site in several.get(name, [name])]


def low_rank_shapes(
    places: Sequence[tuple[int, str]], rank: int, shape: BackboneShape
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of A [r, inputs] and B [outputs, r] for every block and site."""
    return {
        f"{layer}.{site}.{name}": matrix
        for layer, site in places
        for name, matrix in (
            ("A", (rank, shape.inputs(site))),
            ("B", (shape.outputs(site), rank)),
        )
    }


def low_rank_changes(
    parameters: Mapping[str, Tensor], places: Sequence[tuple[int, str]], scale: float
) -> list[Modification]:
    """Return the changes that A and B of every block and site describe."""
    return [
        LowRank(
            site, layer, parameters[f"{layer}.{site}.A"], parameters[f"{layer}.{site}.B"], scale
        )
        for layer, site in places
    ]
