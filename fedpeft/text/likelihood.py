"""The task model of classes by likelihood: logits of the classes' words by the backbone.

The logit of a class is the language model's logit of its word's first token (see
``tasks.label_words``), after the prompt in a decoder, as the first word of a text in a decoder
behind an encoder. A softmax over these C logits gives the probabilities, as in Gao et al. 2021
(arXiv 2012.15723, equation 1). So the loss is over the C classes and not over the vocabulary: that
is the decision to make, other words are never predicted, and a step takes C products of a state
and an embedding instead of one for every token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedpeft.backbones.language import token_logits
from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.model import TaskModel
from fedpeft.parameters import Realised, TaskParameters
from fedpeft.tasks.label_words import LabelWords


class LikelihoodModel(TaskModel):
    """Runs G task vectors through one frozen backbone that predicts classes by their words.

    The task vector has the method's parameters only.

    Attributes:
        words: tokens of the classes.

    Args:
        backbone: it has output embeddings, which stay frozen.
        parameters: the method, and a ``LanguageHead`` of C classes.
        words: tokens of the classes.
        options: as ``TaskModel``'s.
    """

    def __init__(
        self, backbone: Backbone, parameters: TaskParameters, words: LabelWords, **options: Any
    ):
        super().__init__(backbone, parameters, **options)
        self.words = words
        self._tokens, self._start = (
            torch.tensor(ids, device=backbone.device, dtype=torch.int64)
            for ids in (words.tokens, words.start)
        )

    def outputs(self, realised: Realised, batch: Batch) -> Tensor:
        """Return the logits of the classes' words, [N, C]."""
        rows, ids = len(batch.input_ids), None
        if len(self._start):
            ids = self._start.expand(rows, -1)
        states, seen = self._encoder.run(realised.modifications, batch, 0, ids)
        states = states.to(self.dtype)
        read = self._read(states, seen) if ids is None else states[:, -1]
        return token_logits(self.backbone.language, read, self._tokens)
