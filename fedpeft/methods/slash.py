"""SLaSh: shift activations by projections of one vector (Gupta et al. 2023, section 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods.settings import MOST, Blocks, MethodSettings, chosen_blocks
from fedpeft.methods.single_vector import Init, SingleVector
from fedpeft.modifications import Modification, Shift
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator


class SlashSettings(MethodSettings):
    """Settings of SLaSh."""

    name: Literal["slash"]
    d: Annotated[int, Field(ge=1, le=MOST)] | Literal["max"] = Field(
        1024, description="length of the trained vector z; max = number of shifted activations"
    )
    position: Literal["output", "intermediate", "attention"] = Field(
        "output",
        description="where to shift: output (before the block's last LayerNorm) | intermediate "
        "(before the activation) | attention (after the attention's LayerNorm, or without one "
        "after the attention)",
    )
    layers: Blocks = Field(
        "all", description="blocks to shift, counted from 0: all | upper half | 6-11 | 0,5"
    )
    init: Init = Field(
        "normal",
        description="distribution of z and W: normal | uniform | zeros (z = 0, W normal) | "
        "identity (W = I, d = width, z normal)",
    )


class Slash(SingleVector[SlashSettings]):
    """Shift the activations of every block l by a projection of one vector: ``h <- h + W_l z``.

    z in R^d is trained, W_l is fixed and random. Training starts from the pretrained backbone only
    with ``init = "zeros"``.
    """

    Settings = SlashSettings
    lr = 5e-3
    source = "Gupta et al. 2023, section 2"
    fusable = True

    def __init__(self, settings: SlashSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        attention = shape.after("attn")
        site = {"output": "ffn_out", "intermediate": "ffn_mid", "attention": attention}
        layers = chosen_blocks(settings.layers, shape.layers)
        self._places = self.places([site[settings.position]], layers)
        self.init = settings.init
        self.fusable = all(shape.has(site, layer, "bias") for layer, site in self._places)
        self._width = shape.outputs(site[settings.position])
        shifted = len(self._places) * self._width
        self.d = shifted if settings.d == "max" else settings.d
        if self.d > shifted:
            raise UserError(
                f"method.d = {self.d}: slash shifts {len(self._places)} x {self._width} "
                f"activations of this backbone; expected at most {shifted}, or 'max'"
            )
        if settings.init == "identity" and self.d != self._width:
            raise UserError(
                f"method.d = {self.d}: expected {self._width}, the width of the shifted "
                f"activations, with method.init = 'identity'"
            )

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    def projections(self) -> list[Projection]:
        """Return W_l of every block, with entries of unit variance."""
        return [
            Projection(self.seed, f"slash/{site}/{layer}", self._width, self.d, self.distribution)
            for layer, site in self._places
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the shift W_l z of every block."""
        # Entries get variance 1/d; the identity is not scaled.
        scale = 1.0 if self.init == "identity" else 1 / sqrt(self.d)
        z = parameters["z"] * scale
        return [
            Shift(site, layer, project(z))
            for (layer, site), project in zip(self._places, projections, strict=True)
        ]
