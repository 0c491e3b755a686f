"""Forward passes of a frozen encoder with modifications in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers.masking_utils import create_bidirectional_mask

from fedpeft.backbones.loading import Backbone
from fedpeft.batches.batch import Batch
from fedpeft.batches.packing import Packing
from fedpeft.modifications import Modification, WeightChange
from fedpeft.modifications.hooks import applied
from fedpeft.modifications.prompts import prefixes_of


def first_changed_block(modifications: Sequence[Modification], blocks: int) -> int:
    """Return the index of the first block that modifications change.

    0 if they change the embeddings or whole weights, whose ``layer`` is 0; the number of blocks if
    there are no modifications.
    """
    return min((modification.layer for modification in modifications), default=blocks)


class Encoder:
    """The encoder of a backbone, BERT or RoBERTa of transformers.

    Args:
        backbone: the backbone.
        autocast: "off", or the name of the torch dtype inside the encoder.
    """

    def __init__(self, backbone: Backbone, autocast: str = "off"):
        self._model: Any = backbone.model
        self._family, self._types = backbone.shape.family, backbone.shape.types
        mask_id = backbone.tokenizer.mask_token_id
        self._mask_id: int = -1 if mask_id is None else mask_id
        self._device, self._autocast = backbone.device.type, autocast

    def run(
        self, modifications: Sequence[Modification], batch: Batch, first: int = 0
    ) -> tuple[Tensor, Batch]:
        """Return the last hidden states [N, k + T', width], and the batch as the encoder saw it.

        k is the length of a prompt before the text; T' is T and the tokens added inside the text.

        Args:
            modifications: the changes to apply.
            batch: N texts of T tokens. With ``batch.states``, the pass starts with them.
            first: index of the block that ``batch.states`` enter; no earlier one is changed.
        """
        prepared = []
        for modification in modifications:
            ready, batch = modification.prepare(batch, self._mask_id)
            prepared.append(ready)
        weights = {m.name: m.value for m in prepared if isinstance(m, WeightChange)}
        hooked, arguments = prefixes_of([m for m in prepared if not isinstance(m, WeightChange)])
        with self._precision(), applied(self._model, self._family, hooked):
            if batch.states is None:
                states = self._run_all(weights, batch, arguments)
            else:
                states = self._run_from(first, batch.states, batch, arguments)
        return batch.packing.unpack(states) if batch.packing else states, batch

    def states_before(self, block: int, batch: Batch) -> Tensor:
        """Return the hidden states [N, T, width] that enter a block, with no modification.

        ``block`` = the number of blocks gives the last hidden states.
        """
        with torch.no_grad(), self._precision():
            inputs = self._inputs(batch)
            mask = self._attention_mask(inputs.pop("attention_mask"))
            states = self._model.embeddings(**inputs)
            for layer in self._model.encoder.layer[:block]:
                states = layer(states, mask)
        return states

    def _run_all(
        self, weights: dict[str, Tensor], batch: Batch, prefixes: dict[str, Any]
    ) -> Tensor:
        model, arguments = self._model, {**self._inputs(batch), **prefixes}
        with self._packed(batch.packing, arguments):
            if not weights:
                return model(**arguments).last_hidden_state
            changed = {
                # Not value[0]: its backward pass allocates zeros as large as the weight.
                name: model.get_parameter(name) + value.squeeze(0)
                for name, value in weights.items()
            }
            return functional_call(model, changed, kwargs=arguments).last_hidden_state

    def _run_from(
        self, first: int, states: Tensor, batch: Batch, prefixes: dict[str, Any]
    ) -> Tensor:
        mask, arguments = self._attention_mask(batch.attention_mask), prefixes
        if batch.packing:
            states = batch.packing.pack(states)
            arguments = {**prefixes, "packing": batch.packing}
        for layer in self._model.encoder.layer[first:]:
            states = layer(states, mask, **arguments)
        return states

    @contextmanager
    def _packed(self, packing: Packing | None, arguments: dict[str, Any]) -> Iterator[None]:
        """Pack texts after the embeddings while the context is open.

        Adds the packing to ``arguments`` of the forward pass, and replaces the mask by the
        attention's form of it, which the model would otherwise build for the packed texts.
        """
        if packing is None:
            yield
            return
        arguments["packing"] = packing
        arguments["attention_mask"] = self._attention_mask(arguments["attention_mask"])
        embeddings = self._model.embeddings
        handle = embeddings.register_forward_hook(lambda module, given, out: packing.pack(out))
        try:
            yield
        finally:
            handle.remove()

    def _attention_mask(self, mask: Tensor) -> Tensor | None:
        """Return a mask [N, T] in the form that the attention takes."""
        like = torch.empty(*mask.shape, 0, dtype=self._model.dtype, device=mask.device)
        return create_bidirectional_mask(self._model.config, like, mask)

    def _inputs(self, batch: Batch) -> dict[str, Tensor]:
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
        if self._types > 1:
            inputs["token_type_ids"] = batch.token_type_ids
        return inputs

    def _precision(self) -> AbstractContextManager[object]:
        if self._autocast == "off":
            return nullcontext()
        return torch.autocast(self._device, dtype=getattr(torch, self._autocast))
