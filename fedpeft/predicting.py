"""Predictions of a finished run for unlabeled texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpeft.batches.encoded import IGNORED, Encoded
from fedpeft.errors import RunFailed, UserError
from fedpeft.runtime import encode_examples
from fedpeft.tasks import Examples, Kind, glue
from fedpeft.tasks.base import tag_column
from fedpeft.tasks.frames import table_of
from fedpeft.tasks.readers import cells, first_present, read_table, shorten, texts_of
from fedpeft.tasks.table import Table
from fedpeft.text.generation import generate
from fedpeft.text.model import TextModel
from fedpeft.trained import Trained
from fedpeft.training import outputs_of

if TYPE_CHECKING:
    import pandas as pd

_CHUNK = 4096  # texts per report of progress; batches of similar length are formed within it


@dataclass(frozen=True)
class Prediction:
    """The prediction for one text.

    Attributes:
        value: a label, a score, the text that is written, or for tags the tag of every word. A
            word that was truncated (task.max_length) or has no token has the tag None.
        probabilities: of every label; for tags, of each word's tag; None for a score.
        cut: whether the text lost tokens to task.max_length.
    """

    value: str | float | list[str | None]
    probabilities: dict[str, float] | list[float | None] | None = None
    cut: bool = False


def predict(
    trained: Trained, examples: Examples, report: Callable[[int], None] = lambda done: None
) -> list[Prediction]:
    """Return the predictions for n texts, in order.

    Args:
        trained: the run.
        examples: the texts; labels are ignored, except for tags (see ``read_texts``).
        report: called with the number of finished texts.

    Raises:
        RunFailed: an output is not finite, which lower precision can cause.
    """
    predictions: list[Prediction] = []
    for start in range(0, len(examples), _CHUNK):
        rows = np.arange(start, min(start + _CHUNK, len(examples)))
        encoded = encode_texts(trained, examples.select(rows))
        if isinstance(trained.model, TextModel):
            done = partial(_add, report, start)
            texts = generate(trained.model, trained.vector, encoded, done)
            predictions += _with_cut(map(Prediction, texts), encoded)
            continue
        outputs = outputs_of(trained.model, trained.vector, encoded)
        if not np.isfinite(outputs).all():
            raise RunFailed("an output is not finite; try engine.autocast = 'off'")
        words = [len(text) for text in examples.text[start : start + _CHUNK]]
        made = predictions_of(trained.kind, trained.labels, outputs, encoded, words)
        predictions += _with_cut(made, encoded)
        report(len(predictions))
    return predictions


def _with_cut(predictions: Iterable[Prediction], encoded: Encoded) -> Iterator[Prediction]:
    """Yield predictions that say whether their texts were cut."""
    assert encoded.cut is not None, "encode_texts counts"
    for prediction, cut in zip(predictions, encoded.cut.texts.tolist(), strict=True):
        yield replace(prediction, cut=cut)


def caveats_of(predictions: Iterable[Prediction]) -> dict[str, int]:
    """Return how many texts were cut and how many words have no tag, see ``tasks.caveats``."""
    found = {"texts_cut": 0, "words_unread": 0}
    for prediction in predictions:
        found["texts_cut"] += prediction.cut
        found["words_unread"] += (
            prediction.value.count(None) if isinstance(prediction.value, list) else 0
        )
    return found


def frame_of(predictions: Sequence[Prediction], labels: Sequence[str]) -> pd.DataFrame:
    """Return predictions as a data frame, one row per text.

    Columns are ``prediction`` and, of classes, ``p(LABEL)`` for each label. Of tags, both
    ``prediction`` and ``probabilities`` are lists with one item per word.
    """
    import pandas as pd

    columns: dict[str, list[Any]] = {"prediction": [each.value for each in predictions]}
    chances = [each.probabilities for each in predictions]
    if chances and isinstance(chances[0], dict):
        columns |= {f"p({name})": [row[name] for row in chances] for name in labels}  # type: ignore
    elif chances and chances[0] is not None:
        columns["probabilities"] = chances
    return pd.DataFrame(columns)


def _add(report: Callable[[int], None], before: int, done: int) -> None:
    report(before + done)


def predictions_of(
    kind: Kind,
    labels: tuple[str, ...],
    outputs: np.ndarray,
    encoded: Encoded,
    words: Sequence[int],
) -> list[Prediction]:
    """Return the predictions for n texts.

    Args:
        kind: of the prediction.
        labels: names of the C classes or tags.
        outputs: logits [n, C] or scores [n, 1]; for tags, logits of all tokens [total, C].
        encoded: the texts; only tags need them.
        words: number of words of each text; only tags need them.
    """
    if kind == "tags":
        return _tags(labels, outputs, encoded, words)
    if kind == "score":
        return [Prediction(float(score)) for score in outputs[:, 0]]
    return _classes(labels, outputs)


def encode_texts(trained: Trained, examples: Examples) -> Encoded:
    """Return the texts tokenized as in training."""
    return encode_examples(examples, trained.model.backbone, trained.experiment, trained.kind)


def read_texts(trained: Trained, path: Path, text: str = "", text_pair: str = "") -> Examples:
    """Return the texts of a table file, which needs no column of labels.

    Args:
        trained: the run; its task defines the default columns.
        path: .tsv, .csv, .jsonl or .parquet.
        text: name of the column with the texts; for tags, with lists of words or with texts
            whose words are separated by whitespace.
        text_pair: name of the column with the second texts.

    Returns:
        Examples with placeholders as labels; for tags, the label of a word is its index in the
        text, which maps tokens back to words.

    Raises:
        UserError: the column is missing, the file is not a table, or a row has no text.
    """
    candidates = _candidates(trained, text, text_pair)
    return _texts_in(trained, read_table(path, {*chain(*candidates)}), path, candidates)


def texts_of_frame(trained: Trained, frame: pd.DataFrame, text: str, text_pair: str) -> Examples:
    """Return the texts of a data frame, see ``read_texts``."""
    candidates = _candidates(trained, text, text_pair)
    wanted = {*chain(*candidates)}
    read = frame[[name for name in frame.columns if str(name) in wanted]]
    table = table_of(read if read.shape[1] else frame, "the data frame")
    return _texts_in(trained, table, Path("the data frame"), candidates)


def _candidates(trained: Trained, text: str, text_pair: str) -> list[tuple[str, str]]:
    """Return the possible names of the columns of the first and the second texts."""
    if text_pair and not trained.pair:
        raise UserError(
            f"--text-pair {text_pair}: task '{trained.experiment.task.name}' has only one text; "
            f"omit the option"
        )
    plain = ("text", "text_pair" if trained.pair else "")
    return [(text or one, text_pair or two) for one, two in (*_task_columns(trained), plain)]


def _texts_in(
    trained: Trained, table: Table, path: Path, candidates: Sequence[tuple[str, str]]
) -> Examples:
    first, second = _columns(table, path, candidates)
    if trained.kind == "tags":
        words = [*_words(table, path, first)]
        return Examples(words, None, tag_column(range(len(text)) for text in words))
    texts = texts_of(table, path, first)
    pairs = texts_of(table, path, second) if second else None
    return Examples(texts, pairs, np.zeros(len(table)))


def _task_columns(trained: Trained) -> list[tuple[str, str]]:
    """Return the possible names of the text columns in the task's files."""
    task = trained.experiment.task
    if task.name == "custom":
        return [(task.source, "") if task.kind == "text" else (task.text, task.text_pair)]
    infos = {info.name: info for info in glue.TASKS}
    return glue.text_columns(infos[task.name]) if task.name in infos else []


def _columns(table: Table, path: Path, candidates: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the first of the possible names of the text columns that the table has."""
    if names := first_present(table, candidates):
        return names
    expected = dict.fromkeys(" and ".join(f"'{n}'" for n in pair if n) for pair in candidates)
    columns = ", ".join(f"'{shorten(name)}'" for name in table.names[:8])
    options = "--text and --text-pair" if candidates[0][1] else "--text"
    raise UserError(f"{path}: no column {' or '.join(expected)}, but {columns}; set {options}")


def _words(table: Table, path: Path, column: str) -> Iterator[list[str]]:
    """Yield the words of every row."""
    for number, value in cells(table, path, column):
        where = f"{path} row {number}: column '{column}'"
        words: Any = value.split() if isinstance(value, str) else value
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            kind = type(value).__name__
            raise UserError(f"{where} is {kind}, expected a list of words or a text")
        if not words:
            raise UserError(f"{where} is empty")
        yield words


def _classes(labels: tuple[str, ...], logits: np.ndarray) -> list[Prediction]:
    """Return the predictions for n texts from logits [n, C]."""
    return [
        Prediction(labels[best], dict(zip(labels, row, strict=True)))
        for best, row in zip(logits.argmax(1).tolist(), _softmax(logits).tolist(), strict=True)
    ]


def _softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _tags(
    labels: tuple[str, ...], logits: np.ndarray, encoded: Encoded, words: Sequence[int]
) -> list[Prediction]:
    """Return the tags of n texts from logits of all tokens [total, C].

    ``encoded.labels`` is the word's index at the first token of each word.
    """
    best, largest, predictions = logits.argmax(axis=1), _softmax(logits).max(axis=1), []
    for row, count in enumerate(words):
        tags: list[str | None] = [None] * count
        probabilities: list[float | None] = [None] * count
        for token in range(encoded.offsets[row], encoded.offsets[row + 1]):
            if (word := encoded.labels[token]) != IGNORED:
                tags[word] = labels[best[token]]
                probabilities[word] = float(largest[token])
        predictions.append(Prediction(tags, probabilities))
    return predictions
