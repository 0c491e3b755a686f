"""The architectures that are pretrained, and how a block of tokens becomes an example."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

WIDTH, HEADS = 256, 4
_HIDDEN = 0.3  # share of the tokens that a denoiser does not see, Lewis et al. 2020, section 4.1
_SPAN = 3.0  # mean length of a hidden span


def decoder(tokenizer: PreTrainedTokenizerFast, length: int) -> PreTrainedModel:
    """Return a random Llama, of seven million parameters with a vocabulary of 8,000."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=4 * length,
        tie_word_embeddings=True,
        **_special(tokenizer),
    )
    return LlamaForCausalLM(config)


def encoder_decoder(tokenizer: PreTrainedTokenizerFast, length: int) -> PreTrainedModel:
    """Return a random BART, of nine million parameters with a vocabulary of 8,000."""
    return BartForConditionalGeneration(BartConfig(**_sizes(tokenizer, length)))


def multilingual(tokenizer: PreTrainedTokenizerFast, length: int) -> PreTrainedModel:
    """Return a random mBART of the same size, whose norms come before the sub-layers."""
    return MBartForConditionalGeneration(MBartConfig(**_sizes(tokenizer, length)))


def _sizes(tokenizer: PreTrainedTokenizerFast, length: int) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer),
        "d_model": WIDTH,
        "encoder_layers": 4,
        "decoder_layers": 4,
        "encoder_attention_heads": HEADS,
        "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": 4 * WIDTH,
        "decoder_ffn_dim": 4 * WIDTH,
        "max_position_embeddings": 4 * length,
        "dropout": 0.0,
        "decoder_start_token_id": tokenizer.eos_token_id,
        "forced_eos_token_id": tokenizer.eos_token_id,
        **_special(tokenizer),
    }


def _special(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


KINDS = {"decoder": decoder, "encoder-decoder": encoder_decoder}
#: Largest learning rates. BART's norms come after the sub-layers: with 2e-3 it only learned how
#: frequent tokens are.
RATES = {"decoder": 2e-3, "encoder-decoder": 5e-4}


@dataclass(frozen=True)
class Continued:
    """Examples for a decoder: each token follows from those before it."""

    tokenizer: PreTrainedTokenizerFast

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """Return a batch from rows of tokens."""
        tokens = torch.from_numpy(np.stack([row["input_ids"] for row in rows])).long()
        return {"input_ids": tokens, "labels": tokens.clone()}


@dataclass(frozen=True)
class Denoised:
    """Examples for an encoder-decoder: text infilling (Lewis et al. 2020, section 2.2).

    Spans of Poisson length become one mask each; the labels are the whole block.

    Attributes:
        tokenizer: of the tokens.
        draw: of the spans.
    """

    tokenizer: PreTrainedTokenizerFast
    draw: np.random.Generator

    def __call__(self, rows: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """Return a batch from rows of tokens."""
        whole = np.stack([row["input_ids"] for row in rows])
        noisy = [{"input_ids": self._hidden(row)} for row in whole]
        batch = self.tokenizer.pad(noisy, return_tensors="pt")
        return {**batch, "labels": torch.from_numpy(whole).long()}

    def _hidden(self, row: np.ndarray) -> list[int]:
        """Return a row of tokens [n] with spans replaced by masks."""
        left, kept, place = int(_HIDDEN * len(row)), [], 0
        chance = _HIDDEN / _SPAN / (1 - _HIDDEN)
        while place < len(row):
            if left > 0 and self.draw.random() < chance:
                span = min(left, 1 + self.draw.poisson(_SPAN - 1))
                kept.append(self.tokenizer.mask_token_id)
                place, left = place + span, left - span
            else:
                kept.append(int(row[place]))
                place += 1
        return kept
