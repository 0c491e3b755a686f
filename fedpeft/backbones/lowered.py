"""A copy of a backbone with its linear layers in low precision, converted once for all passes."""

from __future__ import annotations

from copy import deepcopy
from functools import lru_cache

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fedpeft.backbones.loading import Backbone


@lru_cache(maxsize=2)
def lowered(backbone: Backbone, dtype: torch.dtype) -> PreTrainedModel:
    """Return a copy of the model with the weights of its linear layers in another dtype.

    Passes under autocast use the copy: with the original, autocast converts the frozen weights in
    every pass. The copy shares everything else with the backbone's model: norms, embeddings,
    buffers and configuration.

    Args:
        backbone: the backbone.
        dtype: dtype of the weights and biases of linear layers.
    """
    model = backbone.model
    shared = [*model.parameters(), *model.buffers(), model.config]
    copied = deepcopy(model, {id(item): item for item in shared})
    with torch.inference_mode(False):  # an evaluation may be the first to ask, and training follows
        for module in copied.modules():
            if isinstance(module, nn.Linear | Conv1D):
                for name, weight in module.named_parameters(recurse=False):
                    setattr(module, name, nn.Parameter(weight.to(dtype), requires_grad=False))
    return copied
