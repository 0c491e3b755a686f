"""Tokenize sources and targets of a task of text, as a decoder or an encoder-decoder reads them.

Prompt and target are tokenized apart from each other, because generation starts where the prompt
ends. A source that is too long is cut at its end, inside the prompt; a target that is too long
loses its last tokens and keeps its end token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.batches.cut import Cut
from fedpeft.batches.encoded import IGNORED, Encoded, offsets_of
from fedpeft.tasks.base import Examples
from fedpeft.tasks.prompts import prompt_tokens

if TYPE_CHECKING:
    from fedpeft.backbones.loading import Backbone
    from fedpeft.experiment.settings import TaskSection

_CHUNK = 4096  # texts per call of the tokenizer: bounds the memory of its Python lists
_Ids = list[list[int]]


def encode_written(examples: Examples, backbone: Backbone, task: TaskSection) -> Encoded:
    """Tokenize sources and targets.

    Args:
        examples: sources, and targets to train on or to compare with. Without targets, only the
            sources are read, to generate.
        backbone: it writes text.
        task: prompt and lengths.

    Raises:
        UserError: the prompt alone is longer than ``task.max_length``.
    """
    both = backbone.shape.sites.writes == "encoder-decoder"
    prompts: _Ids = []
    targets: _Ids = []
    shortened: list[bool] = []
    lost: list[int] = []
    for start in range(0, len(examples), _CHUNK):
        chunk = slice(start, start + _CHUNK)
        sources = [str(text) for text in examples.text[chunk]]
        ids, cut = prompt_tokens(
            sources, None, backbone.tokenizer, task.prompt, task.max_length, both
        )
        prompts += ids
        shortened += cut
        if examples.targets is not None:
            ids, over = _targets(examples.targets[chunk], backbone.tokenizer, task.max_target, both)
            targets += ids
            lost += over
    texts = None if examples.targets is None else np.array([*examples.targets, None], object)[:-1]
    if examples.targets is None:
        targets = [[backbone.tokenizer.eos_token_id]] * len(prompts)
    encoded = (_beside if both else _joined)(prompts, targets, texts)
    of_targets = None if examples.targets is None else np.array(lost, np.int64)
    return replace(encoded, cut=Cut(np.array(shortened, bool), None, of_targets))


def _targets(
    texts: Sequence[str], tokenizer: Any, longest: int, both: bool
) -> tuple[_Ids, list[int]]:
    """Return the tokens of each target with an end token, and how many it lost."""
    if both:  # with the special tokens of the tokenizer, as in the backbone's training
        options = {"truncation": True, "max_length": longest}
        encoding = tokenizer(text_target=[*texts], **options)
        over = [
            sum(part.special_tokens_mask.count(0) for part in text.overflowing)
            for text in encoding.encodings
        ]
        return encoding["input_ids"], over
    plain = tokenizer([*texts], add_special_tokens=False, verbose=False)["input_ids"]
    targets = [[*ids[: longest - 1], tokenizer.eos_token_id] for ids in plain]
    return targets, [max(0, len(ids) - longest + 1) for ids in plain]


def _joined(prompts: _Ids, targets: _Ids, texts: np.ndarray | None) -> Encoded:
    """Return texts for a decoder: each prompt with its target; the end token is only predicted."""
    tokens = [[*prompt, *target[:-1]] for prompt, target in zip(prompts, targets, strict=True)]
    labels = [
        [*([IGNORED] * (len(prompt) - 1)), *target]
        for prompt, target in zip(prompts, targets, strict=True)
    ]
    return _encoded(tokens, labels, [len(prompt) for prompt in prompts], None, texts)


def _beside(prompts: _Ids, targets: _Ids, texts: np.ndarray | None) -> Encoded:
    """Return texts for an encoder, and the targets as labels of their own length."""
    starts = offsets_of(np.array([len(target) for target in targets], np.int64))
    return _encoded(prompts, targets, [len(prompt) for prompt in prompts], starts, texts)


def _encoded(
    tokens: _Ids,
    labels: _Ids,
    prompts: list[int],
    starts: np.ndarray | None,
    texts: np.ndarray | None,
) -> Encoded:
    def flat(rows: _Ids, dtype: np.typing.DTypeLike) -> np.ndarray:
        return np.concatenate([np.empty(0, dtype), *(np.array(row, dtype) for row in rows)])

    joined = flat(tokens, np.int32)
    return Encoded(
        joined,
        np.zeros(len(joined), np.uint8),
        offsets_of(np.array([len(row) for row in tokens], np.int64)),
        np.array(prompts, np.int32) - 1,
        flat(labels, np.int64),
        True,
        None,
        starts,
        texts,
    )
