"""JR-WARP: a prompt whose every layer is a projection of one vector (Gupta et al. 2023).

Appendix A: W_0 z is put in front of the embeddings, and blocks 1..L-1 add W_l z to the prompt's
position. A prompt of k tokens has one z and k matrices a layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Literal

from pydantic import Field
from torch import Tensor

from fedpeft.methods.single_vector import SingleVector
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import Prompt, PromptShift
from fedpeft.projection import Projection
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings
from fedpeft.sites import BackboneShape


class JRWarpSettings(MethodSettings):
    """Settings of JR-WARP."""

    name: Literal["jr_warp"]
    d: int = Field(1024, ge=1, le=1_000_000, description="length of the trained vector z")
    length: int = Field(1, ge=1, description="prompt tokens k")
    init: Literal["normal", "uniform", "zeros"] = Field(
        "normal", description="z and W: normal | uniform; zeros: z = 0, W normal"
    )
    reference_compat: bool = Field(
        False,
        description="read the head's token at the index before the prompt was added, as the "
        "paper's released code does",
    )


class JRWarp(SingleVector[JRWarpSettings]):
    """A prompt of k tokens, changed in front of every block but the first."""

    Settings = JRWarpSettings
    lr = 1e-2
    source = "Gupta et al. 2023, appendix A"

    def __init__(self, settings: JRWarpSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        self.d, self.init = settings.d, settings.init

    @property
    def sites(self) -> tuple[str, ...]:
        """The embeddings, and the input of every later block."""
        return ("embeddings", "ffn_norm")

    def projections(self) -> list[Projection]:
        """Return W of every block, rows = k * width, entries of unit variance."""
        rows = self.settings.length * self.shape.width
        return [
            Projection(self.seed, f"jr_warp/prompt/{layer}", rows, self.d, self.distribution)
            for layer in range(self.shape.layers)
        ]

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the prompt and its shifts; the input of block l is the output of block l - 1."""
        z = parameters["z"] / sqrt(self.d)
        prompts = [project(z).unflatten(-1, (-1, self.shape.width)) for project in projections]
        first, *later = prompts
        shifts = [PromptShift("ffn_norm", layer, value) for layer, value in enumerate(later)]
        return [Prompt("embeddings", 0, first), *shifts]

    def read_offset(self, prompts: int) -> int:
        """The head's token moves behind the prompt; the released code forgot that."""
        return 0 if self.settings.reference_compat else prompts
