"""SLaSh: shift every layer's activations by projections of one vector (Gupta et al. 2023).

Section 2: layer l gets the shift z_l = W_l z, W_l fixed and random, z in R^d trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.methods.single_vector import Init, SingleVector
from fedpeft.modifications import Modification, Shift
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.settings import Blocks, MethodSettings
from fedpeft.sites import BackboneShape

#: Where the paper adds the shift, as one of our sites.
SITES = {"output": "ffn_out", "intermediate": "ffn_mid", "attention": "attn_norm"}


class SlashSettings(MethodSettings):
    """Settings of SLaSh."""

    name: Literal["slash"]
    d: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["max"] = Field(
        1024, description="length of the trained vector z; max = as many as are shifted"
    )
    position: Literal["output", "intermediate", "attention"] = Field(
        "output",
        description="output: before the block's last LayerNorm | intermediate: before GELU | "
        "attention: after the attention's LayerNorm",
    )
    layers: Blocks = Field("all", description="blocks that are shifted, from 0: all | 6-11 | 0,5")
    init: Init = Field(
        "normal",
        description="z and W: normal | uniform; zeros: z = 0, W normal; "
        "identity: W = I (d = width), z normal",
    )


class Slash(SingleVector[SlashSettings]):
    """Shift W_l z at one site of every block; identity at the start only with ``init = zeros``."""

    Settings = SlashSettings
    lr = 5e-3
    source = "Gupta et al. 2023, section 2"
    fusable = True

    def __init__(self, settings: SlashSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.layers = _chosen(settings.layers, shape.layers)
        self.init = settings.init
        self._width = shape.intermediate if settings.position == "intermediate" else shape.width
        shifted = len(self.layers) * self._width
        self.d = shifted if settings.d == "max" else settings.d
        if self.d > shifted:
            raise UserError(
                f"method.d = {self.d}: slash shifts {len(self.layers)} x {self._width} activations "
                f"of this backbone; expected at most {shifted}, or 'max'"
            )
        if settings.init == "identity" and self.d != self._width:
            raise UserError(
                f"method.d = {self.d}: expected {self._width}, the width of the shifted "
                f"activations, with method.init = 'identity'"
            )

    @property
    def sites(self) -> tuple[str, ...]:
        """The site of ``position``."""
        return (SITES[self.settings.position],)

    def projections(self) -> list[Projection]:
        """Return W_l of every block, entries of unit variance; ``realise`` divides by sqrt d."""
        (site,) = self.sites
        return [
            Projection(self.seed, f"slash/{site}/{layer}", self._width, self.d, self.distribution)
            for layer in self.layers
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the shift W_l z of every block."""
        # W has variance 1/d; the identity is used as it is.
        scale = 1.0 if self.init == "identity" else 1 / sqrt(self.d)
        z, (site,) = parameters["z"] * scale, self.sites
        return [
            Shift(site, layer, project(z))
            for layer, project in zip(self.layers, projections, strict=True)
        ]


def _chosen(layers: Blocks, count: int) -> list[int]:
    """Return the chosen ones of a backbone's blocks."""
    if layers == "all":
        return list(range(count))
    chosen = sorted(set(layers))
    if chosen[-1] >= count:
        raise UserError(
            f"method.layers: {chosen[-1]} is no block of this backbone; expected 0 to {count - 1}"
        )
    return chosen
