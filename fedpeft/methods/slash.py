"""SLaSh: shift every layer's activations by projections of one vector (Gupta et al. 2023).

Section 2: layer l gets the shift z_l = W_l z, W_l fixed and random, z in R^d trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.methods.base import BackboneShape, Method
from fedpeft.modifications import Modification, Shift
from fedpeft.projection import Distribution, Projection
from fedpeft.settings import MethodSettings

Init = Literal["normal", "uniform", "zeros", "identity"]

#: Where the paper adds the shift, as one of our sites.
SITES = {"output": "ffn_out", "intermediate": "ffn_mid", "attention": "attn_norm"}


class SlashSettings(MethodSettings):
    """Settings of SLaSh."""

    name: Literal["slash"]
    d: int = Field(1024, ge=1, le=1_000_000, description="length of the trained vector z")
    position: Literal["output", "intermediate", "attention"] = Field(
        "output",
        description="output: before the block's last LayerNorm | intermediate: before GELU | "
        "attention: after the attention's LayerNorm",
    )
    init: Init = Field(
        "normal",
        description="z and W: normal | uniform; zeros: z = 0, W normal; "
        "identity: W = I (d = width), z normal",
    )


class Slash(Method[SlashSettings]):
    """Shift W_l z at one site of every block; identity at the start only with ``init = zeros``."""

    Settings = SlashSettings
    lr = 5e-3
    sites = "ffn_out | ffn_mid | attn_norm"
    source = "Gupta et al. 2023, section 2"

    def __init__(self, settings: SlashSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        if settings.init == "identity" and settings.d != self._width:
            raise UserError(
                f"method.d = {settings.d}: expected {self._width}, the width of the shifted "
                f"activations, with method.init = 'identity'"
            )

    @property
    def _width(self) -> int:
        intermediate = self.settings.position == "intermediate"
        return self.shape.intermediate if intermediate else self.shape.width

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the one vector z, [d]."""
        return {"z": (self.settings.d,)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw z from the distribution of W, variance 1/d.

        The bound that appendix B.2 prints for the uniform one contradicts that variance; the
        released code keeps the variance, and so does this.
        """
        return {"z": draw_z(generator, self.settings.d, self.settings.init)}

    def projections(self) -> list[Projection]:
        """Return W_l of every block, entries of unit variance; ``realise`` divides by sqrt d."""
        site = SITES[self.settings.position]
        return [
            Projection(
                self.seed,
                f"slash/{site}/{layer}",
                self._width,
                self.settings.d,
                projection_distribution(self.settings.init),
            )
            for layer in range(self.shape.layers)
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Tensor]
    ) -> list[Modification]:
        """Return the shift W_l z of every block."""
        # W has variance 1/d; the identity is used as it is.
        scale = 1.0 if self.settings.init == "identity" else 1 / sqrt(self.settings.d)
        z, site = parameters["z"] * scale, SITES[self.settings.position]
        return [Shift(site, layer, z @ weight) for layer, weight in enumerate(projections)]


def draw_z(generator: np.random.Generator, d: int, init: Init) -> np.ndarray:
    """Draw z [d] with variance 1/d, or zeros; ``identity`` keeps the normal one."""
    if init == "zeros":
        return np.zeros(d)
    if init == "uniform":
        bound = sqrt(3 / d)
        return generator.uniform(-bound, bound, d)
    return generator.normal(0, 1 / sqrt(d), d)


def projection_distribution(init: Init) -> Distribution:
    """Return the distribution of W for an init of z and W."""
    return init if init in ("uniform", "identity") else "normal"
