"""Perturbations of texts: typos, dropped words, and the typo that a model minds most."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

#: Returns the probability of each text's own label, [n].
Confidence = Callable[[Sequence[str], np.ndarray], np.ndarray]

LEAST = 4  # letters of a word with a typo: two inner letters change places


def typo(word: str, generator: np.random.Generator) -> str:
    """Swap two neighboring inner letters of a word; return a short word unchanged."""
    if len(word) < LEAST:
        return word
    at = int(generator.integers(1, len(word) - 2))
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def with_typos(text: str, share: float, generator: np.random.Generator) -> str:
    """Give each word of at least four letters a typo with this probability."""
    return " ".join(
        typo(word, generator) if generator.random() < share else word for word in text.split()
    )


def dropped(text: str, share: float, generator: np.random.Generator) -> str:
    """Drop each word with this probability; keep one word at least."""
    words = text.split()
    kept = [word for word in words if generator.random() >= share]
    return " ".join(kept or [words[int(generator.integers(len(words)))]])


def worst_typos(
    texts: Sequence[str],
    labels: np.ndarray,
    confidence: Confidence,
    count: int,
    generator: np.random.Generator,
) -> list[str]:
    """Give each text the typos that lower the probability of its label most.

    A greedy attack: in each of ``count`` turns every word in turn gets a typo, and the text with
    the lowest probability stays. A text that no typo makes less probable stays as it is.

    Args:
        texts: n texts.
        labels: their labels, [n].
        confidence: the attacked model.
        count: number of turns.
        generator: draws the letters.
    """
    current = list(texts)
    for _ in range(count):
        tries, owners = [*current], [*range(len(current))]
        for owner, text in enumerate(current):
            words = text.split()
            for at, word in enumerate(words):
                if len(word) >= LEAST:
                    changed = [*words[:at], typo(word, generator), *words[at + 1 :]]
                    tries.append(" ".join(changed))
                    owners.append(owner)
        scores = confidence(tries, labels[owners])
        lowest = scores[: len(current)].copy()
        for text, owner, score in zip(tries, owners, scores, strict=True):
            if score < lowest[owner]:
                current[owner], lowest[owner] = text, score
    return current
