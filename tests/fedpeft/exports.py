"""What the tests of exports share: runs of every kind, and the README's lines at work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.batches.encoded import IGNORED
from fedpeft.predicting import encode_texts
from fedpeft.tasks import Examples
from fedpeft.tasks.base import tag_column
from fedpeft.trained import Trained
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


def assert_same(block: list[Any], expected: list[Any], tolerance: float = 1e-5) -> None:
    """Compare outputs; the tolerance is relative to the largest of a text: CPUs add differently."""
    assert len(block) == len(expected) > 0
    for one, other in zip(block, expected, strict=True):
        if isinstance(other, list):
            assert_same(one, other, tolerance)
        elif other is None:
            assert one is None
        else:
            most = max(1.0, float(np.abs(other).max()))
            np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=tolerance * most)
