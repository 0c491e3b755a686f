"""Classes by likelihood: prompts without an answer, and the words that answer for the classes.

The score of a class is the logit of its word's first token after the prompt, so these tokens
differ. Words that continue a prompt are the verbalizers of Schick & Schuetze 2021 (arXiv
2001.07676) and of Gao et al. 2021 (arXiv 2012.15723), there for masked language models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.batches.cut import Cut
from fedpeft.batches.encoded import Encoded, offsets_of
from fedpeft.errors import UserError
from fedpeft.tasks.base import Examples
from fedpeft.tasks.prompts import PLACES, prompt_tokens

if TYPE_CHECKING:
    from fedpeft.backbones.loading import Backbone
    from fedpeft.experiment.settings import TaskSection

_CHUNK = 4096  # texts per call of the tokenizer: bounds the memory of its Python lists


@dataclass(frozen=True)
class LabelWords:
    """The tokens that stand for the classes.

    Attributes:
        tokens: first token of each class's word, C different ones.
        start: what a decoder behind an encoder reads before it predicts them, at least one token;
            empty for a decoder, which reads the prompt.
    """

    tokens: tuple[int, ...]
    start: tuple[int, ...] = ()


def label_words(
    labels: Sequence[str], words: Sequence[str], backbone: Backbone, prompt: str
) -> LabelWords:
    """Return the tokens of the words of C classes.

    A decoder continues the prompt with a space and the word, or with the word alone after a prompt
    that ends with white space. A decoder behind an encoder begins a text with the word.

    Args:
        labels: names of the classes.
        words: word of each class; empty = the names, with spaces for underscores.
        backbone: it has output embeddings.
        prompt: ``task.prompt``.

    Raises:
        UserError: not one word for each class, a word without a known token, or two words with the
            same first token.
    """
    if words and len(words) != len(labels):
        raise UserError(
            f"head.words = '{','.join(words)}': {len(words)} words; expected {len(labels)}, one "
            f"for each of the classes {', '.join(labels)}"
        )
    chosen = [word.strip() for word in words or [label.replace("_", " ") for label in labels]]
    tokenizer: Any = backbone.tokenizer
    if backbone.shape.sites.writes == "encoder-decoder":
        read = [_begun(word, backbone) for word in chosen]
    else:
        read = [([], _continued(word, tokenizer, prompt)) for word in chosen]
    tokens: dict[int, str] = {}
    for word, (_, token) in zip(chosen, read, strict=True):
        if token in tokens:
            piece = tokenizer.convert_ids_to_tokens(token)
            raise UserError(
                f"head.words: '{tokens[token]}' and '{word}' share their first token '{piece}'; "
                f"expected words with different first tokens"
            )
        tokens[token] = word
    return LabelWords(tuple(tokens), tuple(read[0][0]))


def _continued(word: str, tokenizer: Any, prompt: str) -> int:
    """Return the first token of a word that continues a prompt."""
    # What comes before the prompt's end is of no account, and differs between examples.
    before = "a" + PLACES.split(prompt)[-1]
    space = "" if before[-1].isspace() else " "
    ids, longer = (
        tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        for text in (before, before + space + word)
    )
    if longer[: len(ids)] != ids:
        raise UserError(
            f"head.words: the first token of '{word}' begins in task.prompt = '{prompt}'; end the "
            f"prompt with a word or a punctuation mark"
        )
    return _known(word, longer[len(ids) :], tokenizer)


def _begun(word: str, backbone: Backbone) -> tuple[list[int], int]:
    """Return what a decoder reads before the first token of a text, and this token."""
    import torch

    tokenizer: Any = backbone.tokenizer
    language: Any = backbone.language
    ids = tokenizer(text_target=word)["input_ids"]
    plain = tokenizer(text_target=word, add_special_tokens=False)["input_ids"]
    token = _known(word, plain, tokenizer)
    shifted = language.prepare_decoder_input_ids_from_labels(torch.tensor([ids]))[0].tolist()
    return shifted[: ids.index(token) + 1], token


def _known(word: str, ids: Sequence[int], tokenizer: Any) -> int:
    """Return the first of a word's tokens."""
    if not ids or ids[0] == tokenizer.unk_token_id:
        raise UserError(
            f"head.words: the backbone's tokenizer has no token for '{word}'; choose another word"
        )
    return ids[0]


def encode_prompted(examples: Examples, backbone: Backbone, task: TaskSection) -> Encoded:
    """Tokenize prompts whose next token is the class's word; the head reads the last token.

    Args:
        examples: texts or pairs, with class indices.
        backbone: it has output embeddings.
        task: prompt and length.

    Raises:
        UserError: the prompt alone is longer than ``task.max_length``.
    """
    ended = backbone.shape.sites.writes == "encoder-decoder"
    rows: list[list[int]] = []
    cut: list[bool] = []
    for start in range(0, len(examples), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        sources = [str(text) for text in examples.text[chunk]]
        pairs = None if examples.text_pair is None else examples.text_pair[chunk]
        prompts, shortened = prompt_tokens(
            sources, pairs, backbone.tokenizer, task.prompt, task.max_length, ended
        )
        rows += prompts
        cut += shortened
    lengths = np.array([len(row) for row in rows], np.int64)
    tokens = np.concatenate([np.empty(0, np.int32), *(np.array(row, np.int32) for row in rows)])
    return Encoded(
        tokens,
        np.zeros(len(tokens), np.uint8),
        offsets_of(lengths),
        (lengths - 1).astype(np.int32),
        examples.labels,
        cut=Cut(np.array(cut, bool)),
    )
