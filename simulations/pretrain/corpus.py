"""Sentences of tab-separated files, their tokenizer, and blocks of tokens of equal length."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from fedpeft.errors import UserError
from fedpeft.files import USERS_TEXT

COLUMNS = ("sentence", "sentence1", "sentence2")
PAD, MASK, BEGIN, END, UNKNOWN = "<pad>", "<mask>", "<s>", "</s>", "<unk>"


def sentences(folder: Path) -> list[str]:
    """Return the different texts of all ``train.tsv`` below a folder, in the order of the files.

    Development and test files are not read: what is pretrained on the others may be measured there.

    Raises:
        UserError: there are none.
    """
    texts = dict.fromkeys(text for path in sorted(folder.rglob("train.tsv")) for text in _of(path))
    if not texts:
        raise UserError(
            f"--text {folder}: no texts; expected train.tsv files in it with a column named "
            f"{', '.join(COLUMNS)}"
        )
    return [*texts]


def _of(path: Path) -> Iterator[str]:
    with path.open(encoding=USERS_TEXT, newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield from (text for name in COLUMNS if (text := (row.get(name) or "").strip()))


def train_tokenizer(texts: list[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of ``vocabulary`` entries, trained on texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, MASK, BEGIN, END, UNKNOWN]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    begin, end = (tokenizer.token_to_id(token) for token in (BEGIN, END))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}",
        pair=f"{BEGIN} $A {END} $B {END}",
        special_tokens=[(BEGIN, begin), (END, end)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        mask_token=MASK,
        bos_token=BEGIN,
        eos_token=END,
        unk_token=UNKNOWN,
        sep_token=END,
        cls_token=BEGIN,
    )


def blocks(
    texts: list[str], tokenizer: PreTrainedTokenizerFast, length: int, draw: np.random.Generator
) -> np.ndarray:
    """Return shuffled texts, one after the other, in blocks of tokens [n, length], int32."""
    order = draw.permutation(len(texts))
    encoded = tokenizer([texts[place] for place in order])["input_ids"]
    tokens = np.concatenate([np.asarray(row, np.int32) for row in encoded])
    return tokens[: len(tokens) // length * length].reshape(-1, length)
