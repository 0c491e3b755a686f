"""Compacter: adapters made of Kronecker products (Karimi Mahabadi et al. 2021, sections 3, 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods.base import Method
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Bottleneck, Modification, NormChange
from fedpeft.projection.operators import Operator

RULE_STD = 0.01  # released code: phm_init_range; variance 1e-4


class CompacterSettings(MethodSettings):
    """Settings of Compacter."""

    name: Literal["compacter"]
    n: int = Field(4, ge=1, le=MOST, description="number n of Kronecker products per matrix")
    rank: int = Field(
        1, ge=1, le=MOST, description="rank of s_i t_i, the second factor of each product"
    )
    reduction: int = Field(
        32, ge=1, le=MOST, description="width of the backbone / width of the bottleneck"
    )
    plus_plus: bool = Field(False, description="Compacter++: no adapter after the attention")
    layer_norms: bool = Field(
        False, description="also train the LayerNorms, as the paper's comparison does"
    )


class Compacter(Method[CompacterSettings]):
    """Insert adapters whose matrices are Kronecker sums: ``W = sum_i A_i (x) (s_i t_i)``.

    The adapters are where Houlsby et al. put them, with GELU: h <- h + GELU(h W_down) W_up. The n
    matrices A_i [n, n] are shared by all adapters; the low-rank factors s_i and t_i are not.
    """

    Settings = CompacterSettings
    lr = 3e-3
    source = "Karimi Mahabadi et al. 2021, section 4"

    def __init__(self, settings: CompacterSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.bottleneck = shape.width // settings.reduction
        if shape.width % settings.reduction or self.bottleneck % settings.n:
            raise UserError(
                f"method.reduction = {settings.reduction}, method.n = {settings.n}: the width "
                f"{shape.width} of the backbone must be a multiple of their product"
            )
        self._places = self.places(self._adapted)

    @property
    def _adapted(self) -> tuple[str, ...]:
        return ("ffn_out",) if self.settings.plus_plus else ("attn_out", "ffn_out")

    @property
    def _norms(self) -> list[tuple[str, int]]:
        """(site, block) of each trained norm: those with a gain."""
        if not self.settings.layer_norms:
            return []
        outer = [(site, 0) for site in self.shape.sites.outer]
        inner = [
            (site, layer)
            for layer in range(self.shape.layers)
            for site in self.shape.stack(layer)[0].sites
        ]
        return [
            (site, layer)
            for site, layer in [*outer, *inner]
            if site.endswith("norm") and self.shape.has(site, layer, "weight")
        ]

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        adapted, norms = (site for _, site in self._places), (site for site, _ in self._norms)
        return self.shape.ordered([*adapted, *norms])

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the rule A [n, n, n], and the factors and biases of every adapter."""
        n, rank = self.settings.n, self.settings.rank
        width, middle = self.shape.width, self.bottleneck
        shapes = {
            "down_left": (n, middle // n, rank),
            "down_right": (n, rank, width // n),
            "down_bias": (middle,),
            "up_left": (n, width // n, rank),
            "up_right": (n, rank, middle // n),
            "up_bias": (width,),
        }
        parameters: dict[str, tuple[int, ...]] = {"rule": (n, n, n)}
        for layer, site in self._places:
            parameters |= {f"{layer}.{site}.{name}": shape for name, shape in shapes.items()}
        for site, layer in self._norms:
            size = (self.shape.outputs(site),)
            parameters[f"{layer}.{site}.gain"] = size
            if self.shape.has(site, layer, "bias"):
                parameters[f"{layer}.{site}.bias"] = size
        return parameters

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the rule from N(0, 0.01^2) and the factors Glorot-uniform; the rest is 0."""
        values = super().initial(generator)
        for name, shape in self.parameters().items():
            if name == "rule":
                values[name] = generator.normal(0, RULE_STD, shape)
            elif name.endswith(("left", "right")):
                bound = sqrt(2) * sqrt(6 / (shape[1] + shape[2]))  # gain sqrt 2: released code
                values[name] = generator.uniform(-bound, bound, shape)
        return values

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the adapters with materialized matrices, and the changes of the LayerNorms."""

        def adapter(layer: int, site: str) -> Bottleneck:
            at = f"{layer}.{site}"
            down, up = (
                kronecker_sum(
                    parameters["rule"],
                    parameters[f"{at}.{name}_left"],
                    parameters[f"{at}.{name}_right"],
                )
                for name in ("down", "up")
            )
            biases = parameters[f"{at}.down_bias"], parameters[f"{at}.up_bias"]
            return Bottleneck(site, layer, down, biases[0], up, biases[1], 1.0, "gelu")

        norms = [
            NormChange(
                site,
                layer,
                parameters[f"{layer}.{site}.gain"],
                parameters.get(f"{layer}.{site}.bias"),
            )
            for site, layer in self._norms
        ]
        return [*(adapter(layer, site) for layer, site in self._places), *norms]


def kronecker_sum(rule: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return sum_i A_i (x) (s_i t_i), [G, n * a, n * b].

    Args:
        rule: A, [G, n, n, n].
        left: s, [G, n, a, rank].
        right: t, [G, n, rank, b].
    """
    product = torch.einsum("gipq,giar,girb->gpaqb", rule, left, right)
    return product.flatten(3).flatten(1, 2)
