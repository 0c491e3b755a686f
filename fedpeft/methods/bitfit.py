"""BitFit: train only the biases (Ben Zaken et al. 2022, arXiv 2106.10199)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods.base import Method
from fedpeft.methods.settings import MethodSettings
from fedpeft.modifications import Modification, Shift
from fedpeft.projection.operators import Operator


class BitFitSettings(MethodSettings):
    """BitFit has no settings."""

    name: Literal["bitfit"]


class BitFit(Method[BitFitSettings]):
    """Add a trained change z to every bias of the backbone: ``W x + b + z``.

    z = 0 at the start. The bias of the keys has no effect, because a softmax ignores a constant
    added to all of its arguments. The paper counts it, so it is trained here too.
    """

    Settings = BitFitSettings
    lr = 1e-3
    source = "Ben Zaken et al. 2022, section 3"
    fusable = True

    def __init__(self, settings: BitFitSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        # "embeddings" may be the output of a norm that has a name of its own.
        outer = [site for site in shape.sites.outer if site != "embeddings"]
        self._outer = [site for site in outer if shape.has(site, 0, "bias")]
        self._inner = [
            (layer, site)
            for layer in range(shape.layers)
            for site in shape.stack(layer)[0].sites
            if shape.has(site, layer, "bias")
        ]
        places = [*((site, 0) for site in self._outer), *(place[::-1] for place in self._inner)]
        reached = {f"{shape.place(*place).path}.bias" for place in places}
        hidden = [name for name in shape.weights if name.endswith("bias") and name not in reached]
        if hidden:
            raise UserError(
                f"method 'bitfit': no site of {shape.family} backbones reaches {hidden[0]}; choose "
                f"another method"
            )
        if not places:
            raise UserError(
                f"method 'bitfit': this {shape.family} backbone has no biases; choose another "
                f"method, such as slash, which adds shifts without them"
            )

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site whose module has a bias."""
        return self.shape.ordered([*self._outer, *(site for _, site in self._inner)])

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the change of each bias, with the bias's shape."""
        width = self.shape.outputs
        return {
            **{site: (width(site),) for site in self._outer},
            **{f"{layer}.{site}": (width(site),) for layer, site in self._inner},
        }

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one shift per bias."""
        return [
            *(Shift(site, 0, parameters[site]) for site in self._outer),
            *(Shift(site, layer, parameters[f"{layer}.{site}"]) for layer, site in self._inner),
        ]
