"""Forward passes of a frozen backbone with modifications in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from fedpeft.backbones.hardware import choose_autocast
from fedpeft.backbones.loading import Backbone
from fedpeft.backbones.lowered import lowered
from fedpeft.batches.batch import Batch
from fedpeft.batches.packing import Packing
from fedpeft.modifications import Modification, WeightChange
from fedpeft.modifications.checkpointing import recomputed
from fedpeft.modifications.hooks import applied, hooked
from fedpeft.modifications.inputs import model_inputs, padding_mask
from fedpeft.modifications.packed import per_text
from fedpeft.modifications.prompts import prefixes_of
from fedpeft.modifications.sums import summed


def first_changed_block(modifications: Sequence[Modification], blocks: int) -> int:
    """Return the index of the first block that modifications change.

    0 if they change the embeddings or whole weights, whose ``layer`` is 0; the number of blocks if
    there are no modifications.
    """
    return min((modification.layer for modification in modifications), default=blocks)


class Encoder:
    """The blocks of a backbone of transformers: an encoder, a decoder or both.

    Args:
        backbone: the backbone.
        autocast: "off", "auto" (see ``choose_autocast``), or the name of the torch dtype inside
            the backbone.
        checkpointing: whether a backward pass computes each block again, see ``recomputed``.
        converts: whether passes under autocast run a copy of the backbone with converted weights,
            see ``lowered``; must be False for a method that changes weights.
    """

    def __init__(
        self,
        backbone: Backbone,
        autocast: str = "off",
        checkpointing: bool = False,
        converts: bool = True,
    ):
        self._backbone, self._shape, self._converts = backbone, backbone.shape, converts
        self._checkpointing = checkpointing
        mask_id = backbone.tokenizer.mask_token_id
        self._mask_id: int = -1 if mask_id is None else mask_id
        self._device = backbone.device.type
        self._autocast = choose_autocast(
            autocast, backbone.device, backbone.model.dtype, backbone.weights
        )

    def run(
        self,
        modifications: Sequence[Modification],
        batch: Batch,
        first: int = 0,
        decoder_ids: Tensor | None = None,
    ) -> tuple[Tensor, Batch]:
        """Return the last hidden states [N, k + T', width], and the batch as the backbone saw it.

        k is the length of a prompt before the text, 0 in a decoder behind an encoder; T' is T and
        the tokens added inside the text.

        Args:
            modifications: the changes to apply.
            batch: N texts of T tokens. With ``batch.states``, the pass starts with them.
            first: index of the block that ``batch.states`` enter; no earlier one is changed.
            decoder_ids: tokens [N, S] of a decoder behind an encoder; None = the text's, shifted.
                T' is S with them.
        """
        prepared = []
        for modification in modifications:
            ready, batch = modification.prepare(batch, self._mask_id)
            prepared.append(ready)
        weights = {m.name: m.value for m in prepared if isinstance(m, WeightChange)}
        others = [m for m in prepared if not isinstance(m, WeightChange)]
        model = self._model
        changes, arguments = prefixes_of(others, partial(self._module, model))
        changes = per_text(changes, batch.packing)
        hooks = recomputed if self._checkpointing and torch.is_grad_enabled() else applied
        with self._precision(), hooks(model, self._shape, changes):
            if batch.states is None:
                states = self._run_all(model, weights, batch, arguments, decoder_ids)
            else:
                states = self._run_from(first, batch.states, batch, arguments)
        return batch.packing.unpack(states) if batch.packing else states, batch

    @property
    def in_16_bits(self) -> bool:
        """Whether products inside the backbone are in 16 bits."""
        return self._autocast != "off"

    @contextmanager
    def in_place(self, modifications: Sequence[Modification]) -> Iterator[None]:
        """Apply modifications to all passes of the model while the context is open.

        For passes that other code makes, such as transformers' ``generate``.

        Raises:
            ValueError: a modification adds tokens, which a pass with cached states cannot do.
        """
        if any(modification.adds_tokens for modification in modifications):
            raise ValueError("a method that adds tokens cannot change passes that other code makes")
        others = [m for m in modifications if not isinstance(m, WeightChange)]
        model = self._backbone.model
        changes, arguments = prefixes_of(others, partial(self._module, model))
        with (
            self._precision(),
            applied(model, self._shape, changes),
            _given(self._stacks, arguments),
            _replaced(model, [m for m in modifications if isinstance(m, WeightChange)]),
        ):
            yield

    @property
    def _stacks(self) -> Sequence[torch.nn.Module]:
        """The modules to which generating code passes arguments."""
        model: Any = self._backbone.model
        return [model.encoder, model.decoder] if len(self._shape.sites.stacks) > 1 else [model]

    @cached_property
    def _model(self) -> Any:
        """The model that passes run."""
        if self._autocast == "off" or self._backbone.weights != "float32" or not self._converts:
            return self._backbone.model
        return lowered(self._backbone, getattr(torch, self._autocast))

    def states_before(self, block: int, batch: Batch) -> Tensor:
        """Return the hidden states [N, T, width] that enter a block, with no modification.

        ``block`` = the number of blocks gives the last hidden states.
        """
        with torch.no_grad(), self._precision():
            if not self._shape.sites.resumes:
                assert block == self._shape.layers, "this family starts a pass at its first block"
                return self._run_all(self._model, {}, replace(batch, packing=None), {})
            inputs = model_inputs(self._model, self._shape, batch)
            mask = padding_mask(self._model, inputs.pop("attention_mask"))
            states = self._model.embeddings(**inputs)
            if hasattr(self._model, "embeddings_project"):  # ELECTRA
                states = self._model.embeddings_project(states)
            for layer in self.blocks[:block]:
                states = layer(states, mask)
        return states

    def _run_all(
        self,
        model: Any,
        weights: dict[str, Tensor],
        batch: Batch,
        prefixes: dict[str, Any],
        decoder_ids: Tensor | None = None,
    ) -> Tensor:
        arguments = {**model_inputs(model, self._shape, batch), **prefixes}
        if decoder_ids is not None:
            arguments["decoder_input_ids"] = decoder_ids
        with self._packed(model, batch.packing, arguments):
            if not weights:
                return model(**arguments).last_hidden_state
            changed = summed(model, weights)
            return functional_call(model, changed, kwargs=arguments).last_hidden_state

    def _run_from(
        self, first: int, states: Tensor, batch: Batch, prefixes: dict[str, Any]
    ) -> Tensor:
        if first == self._shape.layers:
            return states
        mask, arguments = padding_mask(self._model, batch.attention_mask), prefixes
        if batch.packing:
            states = batch.packing.pack(states)
            arguments = {**prefixes, "packing": batch.packing}
        for layer in self.blocks[first:]:
            states = layer(states, mask, **arguments)
        return states

    @contextmanager
    def _packed(
        self, model: Any, packing: Packing | None, arguments: dict[str, Any]
    ) -> Iterator[None]:
        """Pack texts after the embeddings while the context is open.

        Adds the packing to ``arguments`` of the forward pass, and replaces the mask by the
        attention's form of it, which the model would otherwise build for the packed texts.
        """
        if packing is None:
            yield
            return
        arguments["packing"] = packing
        arguments["attention_mask"] = padding_mask(model, arguments["attention_mask"])
        place = self._shape.place("embeddings", 0)
        handle = hooked(model, place, lambda module, hidden, given: packing.pack(hidden))
        try:
            yield
        finally:
            handle.remove()

    def _module(self, model: Any, site: str, layer: int) -> torch.nn.Module:
        module: torch.nn.Module = model.get_submodule(self._shape.place(site, layer).path)
        return module

    @property
    def blocks(self) -> Sequence[Any]:
        """The blocks that passes run, of a family with one stack."""
        (stack,) = self._shape.sites.stacks
        blocks: Sequence[Any] = self._model.get_submodule(stack.path.removesuffix(".{layer}"))
        return blocks

    def _precision(self) -> AbstractContextManager[object]:
        if self._autocast == "off":
            return nullcontext()
        return torch.autocast(self._device, dtype=getattr(torch, self._autocast))


@contextmanager
def _given(modules: Sequence[torch.nn.Module], arguments: dict[str, Any]) -> Iterator[None]:
    """Add keyword arguments to every call of some modules while the context is open."""

    def add(module: object, inputs: tuple[Any, ...], given: dict[str, Any]) -> Any:
        return inputs, {**given, **arguments}

    handles = [module.register_forward_pre_hook(add, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def _replaced(model: Any, changes: Sequence[WeightChange]) -> Iterator[None]:
    """Change whole weights while the context is open.

    The parameters are replaced and not written to: the output embeddings, which may be the same
    tensor, stay as they are, as in training.
    """
    changed = {}
    for change in changes:
        old = model.get_parameter(change.name)
        changed[old] = torch.nn.Parameter(old + change.value[0], requires_grad=False)
    places = [  # encoder and decoder may share a parameter
        (module._parameters, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter in changed
    ]
    try:
        for parameters, name, parameter in places:
            parameters[name] = changed[parameter]
        yield
    finally:
        for parameters, name, parameter in places:
            parameters[name] = parameter
