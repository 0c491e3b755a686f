"""Perturbed texts: what changes, how often, and what an attack picks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedpeft.randomness import generator
from simulations.benchmarks.parts.perturbations import dropped, typo, with_typos, worst_typos

TEXT = "the plot is a tedious and predictable comedy"


def test_a_typo_swaps_two_inner_letters() -> None:
    draw = generator(0, "test")
    seen = {typo("affair", draw) for _ in range(200)}
    assert seen == {"affair", "afafir", "affiar"}  # the two f change places, too
    assert [typo(word, draw) for word in ("a", "the", "and")] == ["a", "the", "and"]
    for word in ("plot", "tedious"):
        other = typo(word, draw)
        assert (other[0], other[-1], sorted(other)) == (word[0], word[-1], sorted(word))
        assert other != word


def test_the_share_of_words_with_a_typo() -> None:
    words = with_typos("tedious " * 4000, 0.3, generator(1, "test")).split()
    assert abs(np.mean([word != "tedious" for word in words]) - 0.3) < 0.03
    assert with_typos(TEXT, 0, generator(1, "test")) == TEXT
    assert with_typos(TEXT, 1, generator(1, "test")).split()[:2] == ["the", "polt"]


def test_dropped_words_keep_the_order_and_one_word() -> None:
    left = dropped("a b " * 4000, 0.25, generator(2, "test")).split()
    assert abs(len(left) / 8000 - 0.75) < 0.02
    words = dropped(TEXT, 0.5, generator(2, "test")).split()
    assert words == [word for word in TEXT.split() if word in words]
    assert dropped(TEXT, 1.0, generator(2, "test")) in TEXT.split()


def test_the_attack_picks_the_typo_that_lowers_the_probability_most() -> None:
    """The model below reads only whether "tedious" and "comedy" are spelled right."""
    asked = []

    def confidence(texts: Sequence[str], labels: np.ndarray) -> np.ndarray:
        asked.append(len(texts))
        right = np.array([0.5 * ("tedious" in t) + 0.2 * ("comedy" in t) for t in texts])
        return np.where(labels == 1, right, 1 - right)

    texts, labels = [TEXT, TEXT, "so so"], np.array([1, 0, 1])
    once = worst_typos(texts, labels, confidence, 1, generator(3, "test"))
    assert "tedious" not in once[0] and "comedy" in once[0]
    assert once[1:] == texts[1:]  # nothing lowers theirs
    assert asked == [3 + 4 + 4]  # four words of four letters or more in each
    twice = worst_typos(texts, labels, confidence, 2, generator(3, "test"))
    assert "tedious" not in twice[0] and "comedy" not in twice[0]
