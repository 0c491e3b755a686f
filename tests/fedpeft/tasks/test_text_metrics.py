"""Metrics of generated texts against rouge-score and sacreBLEU on all texts together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from rouge_score.rouge_scorer import RougeScorer
from sacrebleu.metrics import BLEU, CHRF

from fedpeft.tasks.metrics import MAX_EXAMPLES, check_statistics, examples_of, scores
from fedpeft.tasks.text_metrics import (
    SIZE,
    generated_statistics,
    short_references,
    token_statistics,
)

WRITTEN = [
    "the cat sat on the mat",
    "a dog barked at the moon all night long",
    " the same text ",
    "",
    "ünïcode wörds, too",
]
TARGETS = [
    "the cat sat on a mat yesterday",
    "the dog barked at the moon the whole night",
    "the same text",
    "nothing was written here",
    "unicode words, too",
]


def whole() -> np.ndarray:
    """Return the statistics of all texts."""
    return token_statistics(5, 40, 25, 60.0) + generated_statistics(WRITTEN, TARGETS)


def test_scores_are_those_of_the_packages_on_all_texts() -> None:
    stripped = [text.strip() for text in WRITTEN]
    rouge = RougeScorer(["rougeL"])
    expected = {
        "accuracy": 25 / 40,
        "perplexity": math.exp(60 / 40),
        "exact": 1 / 5,
        "rougeL": np.mean(
            [
                rouge.score(target, text)["rougeL"].fmeasure
                for text, target in zip(stripped, TARGETS, strict=True)
            ]
        ),
        "bleu": BLEU().corpus_score(stripped, [TARGETS]).score / 100,
        "chrf": CHRF().corpus_score(stripped, [TARGETS]).score / 100,
    }
    assert 0 < expected["bleu"] < expected["chrf"] < 1
    assert scores(whole(), "text") == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("cuts", [[2], [1, 3], [1, 2, 3, 4]])
def test_statistics_of_parts_add_up(cuts: list[int]) -> None:
    parts = np.split(np.arange(5), cuts)
    total = token_statistics(5, 40, 25, 60.0) + sum(
        generated_statistics([WRITTEN[k] for k in part], [TARGETS[k] for k in part])
        for part in parts
    )
    np.testing.assert_allclose(total, whole(), rtol=1e-12)


def test_without_generated_texts_only_tokens_are_scored() -> None:
    stats = token_statistics(3, 10, 5, 7.0)
    assert scores(stats, "text") == {"accuracy": 0.5, "perplexity": pytest.approx(math.exp(0.7))}
    assert examples_of(stats, "text") == 3
    assert scores(np.zeros(SIZE), "text")["accuracy"] == 0
    assert scores(token_statistics(1, 1, 0, 1e5), "text")["perplexity"] == math.inf


def test_tokens_that_are_cut_from_targets_count_as_wrong() -> None:
    assert scores(token_statistics(2, 10, 9, 1.0, cut=8), "text")["accuracy"] == 0.5


def test_references_too_short_for_bleu_are_counted() -> None:
    """Words are sacreBLEU's: a full stop is one of its own."""
    targets = ["yes", "it is so", " a b c. ", "one two three four"]
    assert short_references(targets) == 2
    for target, short in zip(targets, [True, True, False, False], strict=True):
        perfect = scores(
            token_statistics(1, 9, 9, 0.0) + generated_statistics([target], [target]), "text"
        )
        assert perfect["exact"] == 1 and perfect["bleu"] == (0 if short else pytest.approx(1))


def changed(place: int, value: float) -> np.ndarray:
    stats = whole()
    stats[place] = value
    return stats


def test_possible_statistics_are_accepted() -> None:
    for stats, generates in ((whole(), True), (token_statistics(5, 40, 25, 60.0), False)):
        before = stats.copy()
        check_statistics(stats, "text", 20, generates=generates)
        np.testing.assert_array_equal(stats, before)
        assert examples_of(stats, "text") == 5


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, 0, "no counts"),
        (0, 2.5, "no counts"),
        (3, -1, "no counts"),
        (0, MAX_EXAMPLES + 1, "more than 10000000 examples"),
        (1, 101, "more than 20 tokens"),
        (1, 4, "more than there is"),  # fewer tokens than correct ones
        (2, 41, "more than there is"),
        (3, 1e9, "more than there is"),
        (4, 1e8, "more than there is"),
        (5, 4, "4 generated texts of 5"),
        (6, 6, "more than there is"),
        (7, 5.1, "more than there is"),
        (10, 1e6, "more than there is"),
        (20, 1e6, "more than there is"),
        (17, 1e16, "more than there is"),
    ],
)
def test_impossible_statistics_are_refused(place: int, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_statistics(changed(place, value), "text", 20, generates=True)


def test_generated_texts_nobody_asked_for_are_refused() -> None:
    with pytest.raises(ValueError, match="5 generated texts of 5 examples"):
        check_statistics(whole(), "text", 20, generates=False)
    hidden = token_statistics(5, 40, 25, 60.0)
    hidden[21] = 3
    with pytest.raises(ValueError, match="0 generated texts of 5 examples"):
        check_statistics(hidden, "text", 20, generates=False)
