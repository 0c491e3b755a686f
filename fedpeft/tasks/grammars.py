"""Grammars of the synthetic tasks: words, rules, and the label of every text.

- sentiment: a positive or negative word, inverted by "not" or "hardly"; the label depends on both.
- inference: the premise states place and time. A hypothesis that generalizes one of them (indoors
  or outdoors, early or late) is an entailment if it agrees and a contradiction otherwise, so both
  texts are needed; a hypothesis that adds something else is neutral.
- similarity: 5 minus the number of the five slots in which the two sentences differ.
- crowd: a sentiment after a clause that has nothing to do with it, so there are 88 million texts.
- entities: phrases state who, what, where and when; the tag of a word such as "the", "on" or "at"
  depends on the words after it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeft.backbones.tiny_words import (
    ADDITIONS,
    ADJECTIVES,
    ASPECTS,
    DAYS,
    LEADS,
    MANNERS,
    NEGATIONS,
    NOUNS,
    OPENINGS,
    PERSONS,
    SCENE,
    VERBS,
)
from fedpeft.tasks.base import Kind, Text

TAGS = ("O", "B-WHO", "I-WHO", "B-WHAT", "I-WHAT", "B-WHERE", "I-WHERE", "B-WHEN", "I-WHEN")

_ROLES = ("-WHO", "", "-WHAT", "-WHERE", "-WHEN")  # one per slot of a scene

_Written = tuple[Text, str, Any]  # text, second text or "", label: number or tags' indices


@dataclass(frozen=True)
class Grammar:
    """One class and one digit per slot determine an example."""

    kind: Kind
    classes: int  # 1 if texts have no class
    radices: tuple[int, ...]
    write: Callable[[int, Sequence[int]], _Written]

    @property
    def size(self) -> int:
        """Number of examples of one class."""
        return math.prod(self.radices)


def _sentiment(label: int, digits: Sequence[int]) -> _Written:
    opening, noun, day, manner, adjective = digits
    negated = manner >= len(MANNERS) - NEGATIONS
    word = ADJECTIVES[label ^ negated][adjective]
    text = f"{OPENINGS[opening]} the {NOUNS[noun]} {DAYS[day]} was {MANNERS[manner]} {word}"
    return text, "", label


def _crowd(label: int, digits: Sequence[int]) -> _Written:
    slots, rest = digits[:3], digits[3:]
    clause = " ".join(phrases[digit] for phrases, digit in zip(SCENE[:3], slots, strict=True))
    text, _, _ = _sentiment(label, rest)
    return f"after {clause} {text}", "", label


def _inference(label: int, digits: Sequence[int]) -> _Written:
    person, verb, lead, pick, *values = digits
    specific = [phrases[value] for (phrases, _), value in zip(ASPECTS, values, strict=True)]
    if label == 1:  # neutral
        claim = ADDITIONS[pick]
    else:
        sort = values[pick] // 5
        claim = ASPECTS[pick][1][sort if label == 0 else 1 - sort]
    premise = f"the {PERSONS[person]} {VERBS[verb]} {' '.join(specific)}"
    return premise, f"{LEADS[lead]} {VERBS[verb]} {claim}", label


def _similarity(_: int, digits: Sequence[int]) -> _Written:
    *slots, differing = digits  # bit s of `differing`: the sentences differ in slot s
    total = sum(slots)
    one, other = [], []
    for position, (digit, phrases) in enumerate(zip(slots, SCENE, strict=True)):
        # the step depends on the sentence, so that a phrase has no fixed counterpart
        step = 1 + total % (len(phrases) - 1) if differing >> position & 1 else 0
        one.append(phrases[digit])
        other.append(phrases[(digit + step) % len(phrases)])
    return " ".join(one), " ".join(other), 5.0 - differing.bit_count()


def _entities(_: int, digits: Sequence[int]) -> _Written:
    opening, time_first, *slots = digits
    parts = [
        (phrases[digit], role) for digit, phrases, role in zip(slots, SCENE, _ROLES, strict=True)
    ]
    if time_first:
        parts.insert(0, parts.pop())
    words, tags = [], []
    for phrase, role in [(OPENINGS[opening], ""), *parts]:
        phrase_words = phrase.split()
        words += phrase_words
        tags += [f"{mark}{role}" if role else "O" for mark in "B" + "I" * (len(phrase_words) - 1)]
    return words, "", [TAGS.index(tag) for tag in tags]


_OPINION = len(OPENINGS), len(NOUNS), len(DAYS), len(MANNERS), len(ADJECTIVES[0])
GRAMMARS = {
    "synthetic/sentiment": Grammar("classes", 2, _OPINION, _sentiment),
    "synthetic/crowd": Grammar(
        "classes", 2, (*(len(part) for part in SCENE[:3]), *_OPINION), _crowd
    ),
    "synthetic/inference": Grammar(
        "classes", 3, (len(PERSONS), len(VERBS), len(LEADS), 2, 10, 10), _inference
    ),
    "synthetic/similarity": Grammar(
        "score", 1, (*(len(part) for part in SCENE), 2**5), _similarity
    ),
    "synthetic/entities": Grammar(
        "tags", 1, (len(OPENINGS), 2, *(len(part) for part in SCENE)), _entities
    ),
}
