"""Prompt tuning: trained embeddings at the input.

With ``placement = "start"`` this is Lester et al. 2021 (arXiv 2104.08691), which Gupta et al. 2023
call WARP_n. With "template" it is WARP (Hambardzumyan et al. 2021, arXiv 2101.00121), whose
templates also have embeddings at the ends of the text.
"""

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
from fedpeft.modifications.prompts import MaskTemplate, Prompt
from fedpeft.projection.operators import Operator


class PromptSettings(MethodSettings):
    """Settings of prompt tuning."""

    name: Literal["prompt"]
    length: int = Field(20, ge=1, le=MOST, description="number n of trained embeddings")
    placement: Literal["start", "template"] = Field(
        "start",
        description="start: before the text, at the input of the first block | template: around "
        "the mask token that the head reads, initialized to its embedding (needs representation = "
        "mask)",
    )


class PromptTuning(Method[PromptSettings]):
    """Add n trained embeddings to the input: ``[p_1, ..., p_n, text]``, or around the mask token.

    With placement "template" the trained parameters are the changes from the mask's embedding.
    """

    Settings = PromptSettings
    lr = 1e-2
    source = "Lester et al. 2021; Hambardzumyan et al. 2021"

    def __init__(self, settings: PromptSettings, shape: BackboneShape, seed: int):
        super().__init__(settings, shape, seed)
        if settings.placement == "template":
            self.around_mask = "method.placement = 'template'"
            self.tokens = settings.length
        elif shape.sites.counts_prompt:
            self.tokens = settings.length
        self.places(self.sites)  # raises if the backbone has no such place

    @property
    def sites(self) -> tuple[str, ...]:
        """The embeddings after their LayerNorm, or the word embeddings before it."""
        return ("words",) if self.around_mask else ("embeddings",)

    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Return the embeddings, [n, width]."""
        (site,) = self.sites
        return {"prompt": (self.settings.length, self.shape.outputs(site))}

    def initial(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw from N(0, 0.02^2), like BERT's embeddings; zeros for a template."""
        if self.around_mask:
            return super().initial(generator)
        return normal(generator, self.parameters())

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        """Return one prompt."""
        kind = MaskTemplate if self.around_mask else Prompt
        (site,) = self.sites
        return [kind(site, 0, parameters["prompt"])]
