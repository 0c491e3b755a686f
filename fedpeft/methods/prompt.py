"""Prompt tuning: n trained embeddings at the input, in front of the text or around the mask.

In front: prompt tuning (Lester et al. 2021, arXiv 2104.08691), the WARP_n of Gupta et al. 2023.
Around the mask that the head reads: WARP (Hambardzumyan et al. 2021, arXiv 2101.00121), whose
templates also put some at the ends of the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from fedpeft.methods.base import Method
from fedpeft.modifications import Modification
from fedpeft.modifications.prompts import MaskTemplate, Prompt
from fedpeft.projection.operators import Operator
from fedpeft.settings import MethodSettings
from fedpeft.sites import BackboneShape

STD = 0.02  # as BERT's own embeddings


class PromptSettings(MethodSettings):
    """Settings of prompt tuning."""

    name: Literal["prompt"]
    length: int = Field(20, ge=1, description="number n of trained embeddings")
    placement: Literal["start", "template"] = Field(
        "start",
        description="start: before the text, without position | template: around the mask that "
        "is read, starting as mask tokens (needs representation = mask)",
    )


class PromptTuning(Method[PromptSettings]):
    """n embeddings; with placement ``template`` what is trained is their change from <mask>'s."""

    Settings = PromptSettings
    lr = 1e-2
    source = "Lester et al. 2021; Hambardzumyan et al. 2021"

    def __init__(self, settings: PromptSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        if settings.placement == "template":
            self.around_mask = "method.placement = 'template'"
            self.tokens = settings.length

    @property
    def sites(self) -> tuple[str, ...]:
        """The embeddings behind their LayerNorm, or the word embeddings before it."""
        return ("words",) if self.around_mask else ("embeddings",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the embeddings, [n, width]."""
        return {"prompt": (self.settings.length, self.shape.width)}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw N(0, 0.02), or zeros: a template starts from the mask's embedding."""
        shape = self.parameters()["prompt"]
        return {"prompt": np.zeros(shape) if self.around_mask else generator.normal(0, STD, shape)}

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return the one prompt."""
        kind = MaskTemplate if self.around_mask else Prompt
        (site,) = self.sites
        return [kind(site, 0, parameters["prompt"])]
