"""Prefix tuning of Li and Liang 2021 (arXiv 2101.00190)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.base import Method, normal
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import KeyValuePrefix
from fedpeft.projection.operators import Operator


class PrefixSettings(MethodSettings):
    """Settings of prefix tuning."""

    name: Literal["prefix"]
    length: int = Field(
        32, ge=1, le=MOST, description="length l of the prefix (paper: 200; GLUE 32)"
    )
    hidden: int = Field(
        0,
        ge=0,
        le=MOST,
        description="width of an MLP that generates the prefix (papers: 800); 0 = train the prefix "
        "directly; with an MLP, clients send all of its weights",
    )


class Prefix(Method[PrefixSettings]):
    """Prepend l trained keys and values in every head: ``softmax(q [P_k, K]^T) [P_v, V]``.

    The positions of the text do not shift, and every token attends to the prefix. In an
    encoder-decoder, self-attentions and cross-attentions have prefixes.
    """

    Settings = PrefixSettings
    lr = 1e-2
    source = "Li and Liang 2021, section 4"

    def __init__(self, settings: PrefixSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self._places = self.places(("kv",))

    @property
    def sites(self) -> tuple[str, ...]:
        """See Method."""
        return self.shape.ordered(site for _, site in self._places)

    @property
    def _attentions(self) -> list[tuple[str, int, str]]:
        """Return (start of the parameters' names, block, site) of every attention."""
        places = self._places
        return [(f"{layer}.{site.removesuffix('kv')}prefix", layer, site) for layer, site in places]

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return P_k and P_v [l, width] of every attention, or the MLP that generates them."""
        length, hidden = self.settings.length, self.settings.hidden
        width = self.shape.outputs("kv")
        if not hidden:
            return {
                f"{at}_{name}": (length, width)
                for at, _, _ in self._attentions
                for name in ("keys", "values")
            }
        outputs = 2 * len(self._places) * width
        return {
            "embedding": (length, width),
            "hidden.weight": (hidden, width),
            "hidden.bias": (hidden,),
            "out.weight": (outputs, hidden),
            "out.bias": (outputs,),
        }

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw from N(0, 0.02^2); biases are 0."""
        return normal(generator, self.parameters())

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one prefix per attention."""
        prefix = self._by_mlp(parameters) if self.settings.hidden else parameters
        return [
            KeyValuePrefix(site, layer, prefix[f"{at}_keys"], prefix[f"{at}_values"])
            for at, layer, site in self._attentions
        ]

    def _by_mlp(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the keys and values of all attentions: out(tanh(hidden(embedding)))."""
        inner = parameters["embedding"] @ parameters["hidden.weight"].transpose(-1, -2)
        inner = (inner + parameters["hidden.bias"][:, None]).tanh()  # [G, l, hidden]
        flat = inner @ parameters["out.weight"].transpose(-1, -2) + parameters["out.bias"][:, None]
        width = self.shape.outputs("kv")
        parts = flat.unflatten(-1, (len(self._places), 2, width)).movedim(1, 3)
        return {
            f"{at}_{name}": parts[:, index, side]
            for index, (at, _, _) in enumerate(self._attentions)
            for side, name in enumerate(("keys", "values"))
        }
