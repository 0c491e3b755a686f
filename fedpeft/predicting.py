"""Predictions of a finished run for texts that have no labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.errors import RunFailed, UserError
from fedpeft.tasks import Examples, glue
from fedpeft.tasks.base import IGNORED, tag_column
from fedpeft.tasks.encoding import Encoded, encode
from fedpeft.tasks.readers import Columns, cells, read_table, shorten, to_examples
from fedpeft.trained import Trained
from fedpeft.training import outputs_of

if TYPE_CHECKING:
    import pandas as pd

_CHUNK = 4096  # texts between two reports of progress; similar lengths are batched within it


@dataclass(frozen=True)
class Prediction:
    """What is predicted of one text.

    Attributes:
        value: a label; a score; or for tags a tag for every word, None where nothing was
            predicted because the word was cut off (task.max_length) or has no token.
        probabilities: of every label; for tags that of each word's tag; None for a score.
    """

    value: str | float | list[str | None]
    probabilities: dict[str, float] | list[float | None] | None = None


def predict(
    trained: Trained, examples: Examples, report: Callable[[int], None] = lambda done: None
) -> list[Prediction]:
    """Return the predictions for n texts, in their order.

    Args:
        trained: the run.
        examples: texts; labels are not looked at, but for tags (see ``read_texts``).
        report: called with the number of texts done.

    Raises:
        RunFailed: an output that is not finite, which lower precision can cause.
    """
    found: list[Prediction] = []
    for start in range(0, len(examples), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(examples)))
        encoded = encode_texts(trained, examples.select(rows))
        outputs = outputs_of(trained.model, trained.vector, encoded)
        if not np.isfinite(outputs).all():
            raise RunFailed("an output is not finite; engine.autocast = 'off' may help")
        if trained.kind == "tags":
            words = [len(text) for text in examples.text[start : start + _CHUNK]]
            found += _tags(trained.labels, outputs, encoded, words)
        elif trained.kind == "score":
            found += [Prediction(float(score)) for score in outputs[:, 0]]
        else:
            found += _classes(trained.labels, outputs)
        report(len(found))
    return found


def encode_texts(trained: Trained, examples: Examples) -> Encoded:
    """Tokenise texts as the run did."""
    experiment = trained.experiment
    return encode(
        examples,
        trained.model.backbone.tokenizer,
        str(experiment.representation),
        experiment.task.max_length,
    )


def read_texts(trained: Trained, path: Path, text: str = "", text_pair: str = "") -> Examples:
    """Return the texts of a table file; it needs no column of labels.

    Args:
        trained: the run; its task says which columns there are if they are not named.
        path: .tsv, .csv, .jsonl or .parquet.
        text: name of the column with the texts; for tags with lists of words, or with texts
            whose words stand between blanks.
        text_pair: name of the column with the second texts.

    Returns:
        Examples with labels that mean nothing; for tags a word's number in its text, by which
        its token is found again.

    Raises:
        UserError: no such column, not a table, or a row without text.
    """
    if text_pair and not trained.pair:
        raise UserError(
            f"--text-pair {text_pair}: task '{trained.experiment.task.name}' has one text, not "
            f"two; leave it out"
        )
    frame = read_table(path)
    columns = _columns(trained, frame, path, text, text_pair)
    if trained.kind == "tags":
        words = [*_words(frame, path, columns.text)]
        return Examples(words, None, tag_column(range(len(each)) for each in words))
    return to_examples(frame.assign(**{columns.label: 0}), path, columns, None)


def _columns(
    trained: Trained, frame: pd.DataFrame, path: Path, text: str, text_pair: str
) -> Columns:
    """Return the first columns that are there: those named, the task's own, text and text_pair."""
    plain = ("text", "text_pair" if trained.pair else "")
    candidates = [(text or one, text_pair or two) for one, two in (*_own_columns(trained), plain)]
    for first, second in candidates:
        if {first, second} - {""} <= set(frame.columns):
            return Columns(first, f"{first}{second}_", second)  # a name that neither of them has
    either = dict.fromkeys(" and ".join(f"'{n}'" for n in pair if n) for pair in candidates)
    has = ", ".join(f"'{shorten(name)}'" for name in list(frame.columns)[:8])
    option = "--text and --text-pair name others" if trained.pair else "--text names another"
    raise UserError(f"{path}: no column {' or '.join(either)}; it has {has}; {option}")


def _own_columns(trained: Trained) -> list[tuple[str, str]]:
    """Return the names of the task's own columns of texts, as they may stand in its files."""
    task = trained.experiment.task
    if task.name == "custom":
        return [(task.text, task.text_pair)]
    folder = {info.name: info.folder for info in glue.TASKS}.get(task.name)
    if folder is None:
        return []
    usual = ("sentence1", "sentence2")
    return [glue.HUB_COLUMNS.get(folder, usual), usual] if trained.pair else [("sentence", "")]


def _words(frame: pd.DataFrame, path: Path, column: str) -> Iterator[list[str]]:
    """Yield the words of every row."""
    for number, value in cells(frame, path, column):
        where = f"{path} row {number}: column '{column}'"
        words: Any = value.split() if isinstance(value, str) else value
        words = words.tolist() if isinstance(words, np.ndarray) else words  # Parquet has arrays
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            kind = type(value).__name__
            raise UserError(f"{where} is {kind}, expected a list of words, or text")
        if not words:
            raise UserError(f"{where} is empty")
        yield words


def _classes(labels: tuple[str, ...], logits: np.ndarray) -> list[Prediction]:
    """Return the most probable label and all probabilities of n texts, from logits [n, C]."""
    return [
        Prediction(labels[best], dict(zip(labels, row, strict=True)))
        for best, row in zip(logits.argmax(1).tolist(), _softmax(logits).tolist(), strict=True)
    ]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _tags(
    labels: tuple[str, ...], logits: np.ndarray, encoded: Encoded, words: list[int]
) -> list[Prediction]:
    """Return the tags of n texts from logits of all tokens [total, C].

    ``encoded.labels`` holds the number of the word whose first token a token is.
    """
    best, chances, found = logits.argmax(axis=1), _softmax(logits).max(axis=1), []
    for row, count in enumerate(words):
        tags: list[str | None] = [None] * count
        probabilities: list[float | None] = [None] * count
        for token in range(encoded.offsets[row], encoded.offsets[row + 1]):
            if (word := encoded.labels[token]) != IGNORED:
                tags[word] = labels[best[token]]
                probabilities[word] = float(chances[token])
        found.append(Prediction(tags, probabilities))
    return found
