"""The task model of text: losses of the target's tokens by the backbone's output embeddings.

A decoder reads the source and the target in one text. An encoder-decoder reads the source in its
encoder and the target, shifted by one, in its decoder. Either way ``Batch.labels`` are the tokens
to predict: the target's and the end token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedpeft.backbones.language import token_logits
from fedpeft.batches.batch import Batch
from fedpeft.batches.encoded import IGNORED
from fedpeft.errors import UserError
from fedpeft.model import TaskModel
from fedpeft.modifications import Modification
from fedpeft.parameters import Realised


@dataclass(frozen=True)
class Search:
    """How texts are generated.

    Attributes:
        tokens: most tokens of a text, end token included.
        beams: beams of the search; 1 = greedy.
        evaluates: whether evaluation generates texts, too, to compare them with the targets.
    """

    tokens: int = 64
    beams: int = 1
    evaluates: bool = False


class TextModel(TaskModel):
    """Runs G task vectors through one frozen backbone that writes text.

    The task vector has the method's parameters only.
    """

    _search = Search()

    @property
    def search(self) -> Search:
        """How texts are generated.

        Raises on assignment:
            UserError: several beams with a method that adds tokens.
        """
        return self._search

    @search.setter
    def search(self, search: Search) -> None:
        if search.beams > 1 and self.adds_tokens:
            raise UserError(
                f"task.beams = {search.beams}: this method adds tokens to a text, so the search is "
                f"greedy; expected 1"
            )
        self._search = search

    @property
    def language(self) -> Any:
        """The backbone with its output embeddings."""
        return self.backbone.language

    def outputs(self, realised: Realised, batch: Batch) -> Tensor:
        """Return the logits of the target's tokens, [M, V], row after row of the batch.

        V is the size of the vocabulary. No logits of other tokens are computed: they would take
        most of the memory.
        """
        ids = None
        if self.method.shape.sites.writes == "encoder-decoder":
            ids = self.language.prepare_decoder_input_ids_from_labels(batch.labels)
        states, _ = self._encoder.run(realised.modifications, batch, 0, ids)
        states = states[:, -batch.labels.shape[1] :].to(self.dtype)  # without a prompt
        return token_logits(self.language, states[batch.labels != IGNORED])

    def next_logits(
        self, modifications: Sequence[Modification], batch: Batch, decoder_ids: Tensor | None
    ) -> Tensor:
        """Return the logits of the next token, [N, V], after the tokens of a batch.

        Args:
            modifications: the changes to apply.
            batch: N texts; ``read`` is the position of each one's last token.
            decoder_ids: tokens [N, S] that a decoder behind an encoder has written, or None.
        """
        states, _ = self._encoder.run(modifications, batch, 0, decoder_ids)
        if decoder_ids is not None:
            return token_logits(self.language, states[:, -1].to(self.dtype))
        added = states.shape[1] - batch.input_ids.shape[1]
        rows = torch.arange(len(states), device=states.device)
        return token_logits(self.language, states[rows, batch.read + added].to(self.dtype))

    @contextmanager
    def in_place(self, modifications: Sequence[Modification]) -> Iterator[Any]:
        """Yield the backbone with output embeddings and with modifications; see ``Encoder``."""
        with self._encoder.in_place(modifications):
            yield self.language

    def losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each example, [N]: the mean of its target's tokens.

        The mean over all tokens of a batch would mix the examples, whose gradients DP-SGD clips.
        """
        chosen = batch.labels != IGNORED
        losses = functional.cross_entropy(outputs, batch.labels[chosen], reduction="none")
        # The order of additions of ``index_add`` differs from run to run on a GPU.
        places = losses.new_zeros(chosen.shape).masked_scatter(chosen, losses)
        return places.sum(1) / chosen.sum(1)
