"""JR-WARP: prompts in every layer, projected from one vector (Gupta et al. 2023, appendix A)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

from pydantic import Field
from torch import Tensor

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.methods.settings import MOST, MethodSettings
from fedpeft.methods.single_vector import SingleVector
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import Prompt, PromptShift
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator


class JRWarpSettings(MethodSettings):
    """Settings of JR-WARP."""

    name: Literal["jr_warp"]
    d: int = Field(1024, ge=1, le=MOST, description="length of the trained vector z")
    length: int = Field(1, ge=1, le=MOST, description="number k of prompt tokens")
    init: Literal["normal", "uniform", "zeros"] = Field(
        "normal",
        description="distribution of z and W: normal | uniform | zeros (z = 0, W normal)",
    )
    reference_compat: bool = Field(
        False,
        description="read the token at its index without the prompt, as the paper's released code "
        "does",
    )


class JRWarp(SingleVector[JRWarpSettings]):
    """Prepend a prompt ``W_0 z`` to the text and add ``W_l z`` to it before every later block l.

    z in R^d is trained. Each W_l [k * width, d] is fixed and random and gives k prompt tokens. In
    an encoder-decoder, the blocks are the encoder's.
    """

    Settings = JRWarpSettings
    lr = 1e-2
    source = "Gupta et al. 2023, appendix A"

    def __init__(self, settings: JRWarpSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.d, self.init = settings.d, settings.init
        self.places(self.sites)  # raises if the backbone has no such place
        self.tokens = settings.length if shape.sites.counts_prompt else 0

    @property
    def sites(self) -> tuple[str, ...]:
        """The embeddings, and the state after every block but the last."""
        return ("embeddings", self.shape.after("ffn"))

    def projections(self) -> list[Projection]:
        """Return W_l [k * width, d] of every block, with entries of unit variance."""
        rows = self.settings.length * self.shape.width
        return [
            Projection(self.seed, f"jr_warp/prompt/{layer}", rows, self.d, self.distribution)
            for layer in range(self.shape.first_layers)
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the prompt and its shifts; the shift before block l is at the output of l - 1."""
        z = parameters["z"] / sqrt(self.d)
        prompts = [project(z).unflatten(-1, (-1, self.shape.width)) for project in projections]
        first, *later = prompts
        shifts = [PromptShift(self.sites[1], layer, value) for layer, value in enumerate(later)]
        return [Prompt("embeddings", 0, first), *shifts]

    def read_offset(self, prompts: int) -> int:
        """See Method; the released code does not move the position behind the prompt."""
        return 0 if self.settings.reference_compat else prompts
