"""Random decoders and encoder-decoders, and SLaSh on them in plain PyTorch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    set_seed,
)

from fedpeft.batches.encoded import IGNORED
from fedpeft.projection import Projection
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from simulations.benchmarks.parts.private_steps import start_of

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]
_IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
#: Sizes of a config for `--small`; those of transformers' defaults are GPT-2's and BART-large's.
_SMALL_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2}
_BASE_BART = {
    **{
        f"{side}_{what}": size
        for side in ("encoder", "decoder")
        for what, size in (("layers", 6), ("attention_heads", 12), ("ffn_dim", 3072))
    },
    "d_model": 768,
}
_SMALL_BART = {**_BASE_BART, "d_model": 24, "encoder_layers": 2, "decoder_layers": 2}


def random_backbone(family: str, small: bool, folder: Path) -> str:
    """Write a random GPT-2 or BART of base size with a tokenizer of words; return its folder."""
    vocabulary = 200 if small else 50_000
    words = [*SPECIAL, *(f"w{number}" for number in range(vocabulary - len(SPECIAL)))]
    tokenizer = Tokenizer(models.WordLevel({word: at for at, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    set_seed(0)
    sizes: dict[str, Any] = {"vocab_size": vocabulary, **_IDS}
    model: GPT2LMHeadModel | BartForConditionalGeneration
    if family == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**sizes, **(_SMALL_GPT2 if small else {})))
    else:
        shape = _SMALL_BART if small else _BASE_BART
        start = {"decoder_start_token_id": 2, "forced_eos_token_id": None}
        model = BartForConditionalGeneration(BartConfig(**sizes, **shape, **start))
    model.save_pretrained(folder)
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    return str(folder)


def random_pairs(path: Path, count: int, vocabulary: int) -> Path:
    """Write ``count`` random sources of 20 to 60 words and targets of 5 to 20."""
    draw = generator(0, "benchmark-pairs")

    def text(least: int, most: int) -> str:
        return " ".join(f"w{n}" for n in draw.integers(vocabulary, size=draw.integers(least, most)))

    rows = [json.dumps({"source": text(20, 61), "target": text(5, 21)}) for _ in range(count)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


class TextLoop:
    """A training step of SLaSh on the transformers model, as one would write it by hand.

    Logits are computed for the target's tokens only, as in the engine.
    """

    def __init__(self, runtime: Runtime):
        self.language: Any = runtime.backbone.language
        self.decoder = runtime.backbone.shape.sites.writes == "decoder"
        projections = [w for w in runtime.model.method.projections() if isinstance(w, Projection)]
        self.weights = [torch.from_numpy(w.transposed()) for w in projections]
        self.z = start_of(runtime)[0].requires_grad_()
        local = runtime.experiment.local
        self.most = local.max_grad_norm
        self.optimizer = torch.optim.AdamW([self.z], lr=local.lr or 0.0, weight_decay=0.0)
        self.shifts: list[Tensor] = []
        train = runtime.train
        ends = train.label_offsets if train.label_offsets is not None else train.offsets
        self.tokens = _split(train.tokens.astype(np.int64), train.offsets)
        self.labels = _split(train.labels, ends)

    def step(self, rows: np.ndarray) -> None:
        """Take one step on some of the examples."""
        self.optimizer.zero_grad()
        with self.hooked():
            self.loss(rows).backward()
        clip_grad_norm_([self.z], self.most)
        self.optimizer.step()

    def gradient(self, rows: np.ndarray) -> Tensor:
        """Return the gradient of the mean loss of some of the examples, [P]."""
        with self.hooked():
            return torch.autograd.grad(self.loss(rows), self.z)[0]

    def loss(self, rows: np.ndarray) -> Tensor:
        """Return the mean loss of a batch."""
        z = self.z / sqrt(len(self.z))
        self.shifts = [z @ weight for weight in self.weights]
        tokens = pad_sequence([self.tokens[row] for row in rows], True, 0)
        labels = pad_sequence([self.labels[row] for row in rows], True, IGNORED)
        lengths = torch.tensor([len(self.tokens[row]) for row in rows])
        read = {
            "input_ids": tokens,
            "attention_mask": (torch.arange(tokens.shape[1]) < lengths[:, None]).long(),
        }
        if not self.decoder:
            read["decoder_input_ids"] = self.language.prepare_decoder_input_ids_from_labels(labels)
        states = self.language.base_model(**read, use_cache=False).last_hidden_state
        chosen = labels != IGNORED
        logits = self.language.get_output_embeddings()(states[chosen])
        losses = functional.cross_entropy(logits, labels[chosen], reduction="none")
        shares = (chosen / chosen.sum(1, keepdim=True))[chosen]
        return (losses * shares).sum() / len(rows)

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Add shift l to the output of the second matrix of block l's feed-forward network."""
        handles = [
            module.register_forward_hook(
                lambda _, inputs, output, layer=layer: output + self.shifts[layer]
            )
            for layer, module in enumerate(self._modules())
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _modules(self) -> list[Any]:
        base = self.language.base_model
        if self.decoder:
            return [block.mlp.c_proj for block in base.h]
        return [block.fc2 for block in [*base.encoder.layers, *base.decoder.layers]]


def _split(values: np.ndarray, offsets: np.ndarray) -> list[Tensor]:
    return [torch.from_numpy(part) for part in np.split(values, offsets[1:-1])]
