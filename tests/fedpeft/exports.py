"""What the tests of exports share: runs of every kind, and the README's lines at work."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.batches.encoded import IGNORED
from fedpeft.runs.predicting import encode_texts
from fedpeft.runs.trained import Trained
from fedpeft.runtime import Runtime
from fedpeft.tasks import Examples
from fedpeft.tasks.base import tag_column
from fedpeft.training import outputs_of

TEXTS = ["the film last night was truly wonderful", "i thought, the soup was hardly good!", "no"]
PAIRS = ["a red lamp in the kitchen", "the baker sold an old chair at the market at noon", "x y"]
WORDS = [text.split() for text in (*TEXTS, *PAIRS)]
# The representation or kind, and a task that has one text or two.
READINGS = {
    "cls": ("task.name=synthetic/sentiment", "representation=cls"),
    "cls-pair": ("task.name=synthetic/inference", "representation=cls"),
    "mask": ("task.name=synthetic/sentiment", "representation=mask", "task.max_length=10"),
    "mask-pair": ("task.name=synthetic/inference", "representation=mask", "task.max_length=12"),
    "mean-pair": ("task.name=synthetic/inference", "representation=mean", "task.max_length=10"),
    "unit": ("task.name=synthetic/sentiment", "representation=unit", "task.max_length=10"),
    "score-cls": ("task.name=synthetic/similarity", "representation=cls"),
    "score-mean": ("task.name=synthetic/similarity", "representation=mean"),
    "tags": ("task.name=synthetic/entities", "task.max_length=10"),
}


def examples_for(trained: Trained) -> Examples:
    """Return texts as the run's task has them."""
    if trained.kind == "tags":
        return Examples(WORDS, None, tag_column(range(len(words)) for words in WORDS))
    return Examples(TEXTS, PAIRS if trained.pair else None, np.zeros(len(TEXTS)))


def expected_of(trained: Trained) -> list[Any]:
    """Return the run's own outputs: [C] of each text; for tags [C] of each word or None."""
    encoded = encode_texts(trained, examples_for(trained))
    outputs = outputs_of(trained.model, trained.vector, encoded)
    if trained.kind != "tags":
        return list(outputs)
    rows = []
    for row, words in enumerate(WORDS):
        block: list[Any] = [None] * len(words)
        for token in range(encoded.offsets[row], encoded.offsets[row + 1]):
            if encoded.labels[token] != IGNORED:
                block[encoded.labels[token]] = outputs[token]
        rows.append(block)
    return rows


def code_of(folder: Path) -> str:
    """Return the lines of Python in an export's README."""
    block = re.search(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    assert block
    return block[1]


def said_by_readme(folder: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Run the README's lines where it stands; return its outputs for our texts."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {}
    exec(code_of(folder), names)
    if trained.kind == "tags":
        return [names["outputs"](words) for words in WORDS]
    if trained.pair:
        return [names["outputs"](*each) for each in zip(TEXTS, PAIRS, strict=True)]
    return [names["outputs"](text) for text in TEXTS]


def assert_predicts(block: list[Any], trained: Trained) -> None:
    """Compare outputs with the run's: within 1e-5, or as near to float64's as its own are.

    CPUs add float32 in different orders. A part may be at most 5 times as far from the outputs in
    float64 as the run's own outputs are: on two CPUs, rounding errors of equal code differed by a
    factor of up to 3, while a wrong weight changes outputs by over 1e-3.
    """
    exact, own = flat(expected_of(in_float64(trained))), flat(expected_of(trained))
    outputs = flat(block)
    assert np.array_equal(np.isnan(outputs), np.isnan(own)) and len(own)
    if np.nanmax(np.abs(outputs - own)) > 1e-5:
        assert np.nanmax(np.abs(outputs - exact)) <= 5 * np.nanmax(np.abs(own - exact))


def in_float64(trained: Trained) -> Trained:
    """Return the run with a model in float64."""
    engine = trained.experiment.engine.model_copy(update={"dtype": "float64"})
    experiment = trained.experiment.model_copy(update={"engine": engine})
    model = Runtime(experiment).model
    return replace(
        trained, experiment=experiment, model=model, vector=trained.vector.astype(np.float64)
    )


def flat(block: list[Any]) -> np.ndarray:
    """Return all outputs in one array; a word without outputs is NaN."""
    rows = []
    for each in block:
        rows.append(
            flat(each) if isinstance(each, list) else np.ravel(np.nan if each is None else each)
        )
    return np.concatenate(rows)
