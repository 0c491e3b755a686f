"""Full fine-tuning: train every weight of the backbone, without dropout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.methods.settings import MethodSettings
from fedpeft.modifications import Modification, WeightChange
from fedpeft.projection.operators import Operator


class FullSettings(MethodSettings):
    """Full fine-tuning has no settings."""

    name: Literal["full"]


class Full(Method[FullSettings]):
    """Add a trained change D to every weight of the backbone: ``W + D``.

    D = 0 at the start. D is what travels, and ``local.weight_decay`` pulls the weights to their
    pretrained values.
    """

    Settings = FullSettings
    lr = 5e-5
    source = "Devlin et al. 2019, section 4"
    fusable = True
    grouped = False
    sites = ("weights",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every weight of the backbone."""
        return dict(self.shape.weights)

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one change per weight."""
        return [WeightChange("weights", 0, name, parameters[name]) for name in self.shape.weights]
