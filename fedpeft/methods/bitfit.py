"""BitFit: train the biases and nothing else (Ben Zaken et al. 2022, arXiv 2106.10199)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.modifications import Modification, Shift
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings

BLOCK = ("q", "k", "v", "attn_out", "attn_norm", "ffn_mid", "ffn_out", "ffn_norm")


class BitFitSettings(MethodSettings):
    """BitFit has no settings."""

    name: Literal["bitfit"]


class BitFit(Method[BitFitSettings]):
    """A shift at every bias of the encoder, 0 at the start.

    The key's bias cannot change anything: a softmax does not see what is added to all of its
    arguments. The paper counts it, and so does this.
    """

    Settings = BitFitSettings
    lr = 1e-3
    source = "Ben Zaken et al. 2022, section 3"
    fusable = True
    sites = ("embed_norm", *BLOCK)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return what is added to each bias, [its size]."""
        wide = {"ffn_mid": self.shape.intermediate}
        return {
            "embed_norm": (self.shape.width,),
            **{
                f"{layer}.{site}": (wide.get(site, self.shape.width),)
                for layer in range(self.shape.layers)
                for site in BLOCK
            },
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Zeros."""
        return {name: np.zeros(shape) for name, shape in self.parameters().items()}

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the shifts."""
        return [
            Shift("embed_norm", 0, parameters["embed_norm"]),
            *(
                Shift(site, layer, parameters[f"{layer}.{site}"])
                for layer in range(self.shape.layers)
                for site in BLOCK
            ),
        ]
