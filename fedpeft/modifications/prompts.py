"""Modifications that add trained tokens to a text: prompts, templates, prefixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedpeft.batches.batch import Batch
from fedpeft.modifications import Modification


@dataclass(frozen=True)
class Prompt(Modification):
    """k embeddings inserted before the embedding output (site ``embeddings``, layer 0)."""

    adds_tokens = True
    value: Tensor  # [G, k, width]
    reads: str = field(default="self", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """Return [G * B, k + T, width]."""
        groups, length, width = self.value.shape
        rows = hidden.shape[0] // groups
        prompt = self.value[:, None].expand(groups, rows, length, width)
        return torch.cat([prompt.reshape(-1, length, width).to(hidden.dtype), hidden], dim=1)

    def prepare(self, batch: Batch, mask_id: int) -> tuple[Modification, Batch]:
        """Extend the attention mask; the prompt has no token ids, and positions do not change."""
        mask = functional.pad(batch.attention_mask, (self.value.shape[1], 0), value=1)
        return self, replace(batch, attention_mask=mask, packing=None)


@dataclass(frozen=True)
class PromptShift(Modification):
    """h + value at the k prompt positions, which come before the text."""

    value: Tensor  # [G, k, width]
    reads: str = field(default="self", kw_only=True)

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification; the text's tokens do not change."""
        groups, length, width = self.value.shape
        grouped = hidden.reshape(groups, -1, hidden.shape[1], width)
        prompt = grouped[:, :, :length] + self.value[:, None]
        return torch.cat([prompt, grouped[:, :, length:]], dim=2).view_as(hidden)


@dataclass(frozen=True)
class MaskTemplate(Modification):
    """n more mask tokens around the one that is read, each with a trained change (site ``words``).

    WARP's template (Hambardzumyan et al. 2021): the first half comes before the mask, the rest
    after it. ``value`` is added to the mask token's embedding, so WARP starts from 0.
    """

    adds_tokens = True
    value: Tensor  # [G, n, width]
    # Which of the n each token of a batch is, one-hot [N, T', n]. A tuple, so that ``tensors()``,
    # which are trained and have the leading axis G, do not contain it.
    slots: tuple[Tensor, ...] = ()
    reads: str = field(default="self", kw_only=True)

    def prepare(self, batch: Batch, mask_id: int) -> tuple[Modification, Batch]:
        """Insert the mask tokens into the texts, and move the position that is read."""
        count, tokens = self.value.shape[1], batch.input_ids.shape[1]
        if mask_id < 0:
            raise ValueError("the backbone's tokenizer has no mask token, which a template needs")
        left = count // 2
        read = batch.read[:, None]
        at = torch.arange(tokens + count, device=read.device)[None]  # [1, T']
        new = (at >= read) & (at <= read + count) & (at != read + left)
        origin = at - (at - read).clamp(0, count)  # index of the text's token
        number = (at - read - (at > read + left).long()).clamp(0, count - 1)
        slots = functional.one_hot(number, count) * new[:, :, None]
        longer = replace(
            batch,
            input_ids=batch.input_ids.gather(1, origin).masked_fill(new, mask_id),
            attention_mask=batch.attention_mask.gather(1, origin),
            token_type_ids=batch.token_type_ids.gather(1, origin),
            read=batch.read + left,
            packing=None,
        )
        return replace(self, slots=(slots.to(self.value.dtype),)), longer

    def apply(self, hidden: Tensor, source: Tensor) -> Tensor:
        """See Modification; ``hidden`` are the word embeddings."""
        groups, count, _ = self.value.shape
        (slots,) = self.slots
        return hidden + (slots.view(groups, -1, count) @ self.value).view_as(hidden)


@dataclass(frozen=True)
class KeyValuePrefix(Modification):
    """l keys and values before those of the text, at every head (Li and Liang 2021).

    An argument of the attention (sites ``kv`` and ``cross_kv``): its softmax cannot be written as a
    change of its output.
    """

    keys: Tensor  # [G, l, width]
    values: Tensor  # [G, l, width]


def prefixes_of(
    modifications: Sequence[Modification], module_of: Callable[[str, int], nn.Module]
) -> tuple[list[Modification], dict[str, Any]]:
    """Return the modifications for hooks, and the prefixes as arguments of the attention.

    Args:
        modifications: the changes.
        module_of: returns the module of a site and a block.
    """
    hooked = [m for m in modifications if not isinstance(m, KeyValuePrefix)]
    prefixes = {
        module_of(m.site, m.layer): (m.keys, m.values)
        for m in modifications
        if isinstance(m, KeyValuePrefix)
    }
    return hooked, {"prefixes": prefixes} if prefixes else {}
