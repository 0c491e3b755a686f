"""BitFit: train only the biases (Ben Zaken et al. 2022, arXiv 2106.10199)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.methods.settings import MethodSettings
from fedpeft.modifications import Modification, Shift
from fedpeft.projection.operators import Operator

BLOCK = ("q", "k", "v", "attn_out", "attn_norm", "ffn_mid", "ffn_out", "ffn_norm")


class BitFitSettings(MethodSettings):
    """BitFit has no settings."""

    name: Literal["bitfit"]


class BitFit(Method[BitFitSettings]):
    """Add a trained change z to every bias of the encoder: ``W x + b + z``.

    z = 0 at the start. The bias of the keys has no effect, because a softmax ignores a constant
    added to all of its arguments. The paper counts it, so it is trained here too.
    """

    Settings = BitFitSettings
    lr = 1e-3
    source = "Ben Zaken et al. 2022, section 3"
    fusable = True
    sites = ("embed_norm", *BLOCK)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the change of each bias, with the bias's shape."""
        wide = {"ffn_mid": self.shape.intermediate}
        return {
            "embed_norm": (self.shape.width,),
            **{
                f"{layer}.{site}": (wide.get(site, self.shape.width),)
                for layer in range(self.shape.layers)
                for site in BLOCK
            },
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one shift per bias."""
        return [
            Shift("embed_norm", 0, parameters["embed_norm"]),
            *(
                Shift(site, layer, parameters[f"{layer}.{site}"])
                for layer in range(self.shape.layers)
                for site in BLOCK
            ),
        ]
