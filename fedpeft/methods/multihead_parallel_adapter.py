"""Multi-head parallel adapter of He et al. 2022 (section 3.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.base import Method, normal
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import HeadsBottleneck, Modification
from fedpeft.projection.operators import Operator


class MultiheadAdapterSettings(MethodSettings):
    """Settings of the multi-head parallel adapter."""

    name: Literal["multihead_parallel_adapter"]
    length: int = Field(
        30, ge=1, le=MOST, description="width l of each head's bottleneck (paper: 200, 30)"
    )


class MultiheadAdapter(Method[MultiheadAdapterSettings]):
    """Add a bottleneck to every attention head: ``h_i <- h_i + ReLU(q_i P_k^T) P_v``.

    This is prefix tuning with ReLU in place of the gated softmax. q_i is the query x W_q, before a
    norm or rotation of queries.
    """

    Settings = MultiheadAdapterSettings
    lr = 1e-3
    source = "He et al. 2022, section 3.3"

    def __init__(self, settings: MultiheadAdapterSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.places(("q",))  # raises if the backbone has no such site
        self._places = self.places(("heads",))

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return P_k and P_v of every attention, with all heads side by side, [l, width]."""
        shape = (self.settings.length, self.shape.outputs("heads"))
        return {
            f"{at}{name}": shape for at, _, _ in self._attentions for name in ("keys", "values")
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw from N(0, 0.02^2), as the other adapters do."""
        return normal(generator, self.parameters())

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one change per attention."""
        return [
            HeadsBottleneck(
                f"{kind}heads",
                layer,
                parameters[f"{at}keys"],
                parameters[f"{at}values"],
                self.shape.heads,
                reads=f"{kind}q",
            )
            for at, layer, kind in self._attentions
        ]

    @property
    def _attentions(self) -> list[tuple[str, int, str]]:
        """Return (start of the parameters' names, block, "" or "cross_") of every attention."""
        kinds = [(layer, site.removesuffix("heads")) for layer, site in self._places]
        return [(f"{layer}.{kind}", layer, kind) for layer, kind in kinds]
