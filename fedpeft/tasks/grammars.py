"""The grammars of the synthetic tasks: words, rules, and the label of every text.

- sentiment: a word of praise or blame, which "not" or "hardly" turns round; neither the word
  nor the negation alone gives the label.
- inference: the premise states place and time. A hypothesis that generalises one of them
  (indoors or outdoors, early or late) is an entailment if it is of the same sort, else a
  contradiction, so one has to look at both texts; one that adds what the premise does not say
  is neutral.
- similarity: 5 minus the number of the five slots in which the two sentences differ.
- entities: phrases say who, what, where and when; a word such as "the", "on" or "at" belongs to
  one or another of them by what follows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpeft.tasks.base import Kind, Text

TAGS = ("O", "B-WHO", "I-WHO", "B-WHAT", "I-WHAT", "B-WHERE", "I-WHERE", "B-WHEN", "I-WHEN")

_OPENINGS = (
    "i thought", "we felt", "my sister said", "our neighbour wrote", "they told us",
    "everyone agreed", "he admitted", "she remembered", "the guests found", "my friend believed",
)  # fmt: skip
_NOUNS = (
    "film", "soup", "hotel", "concert", "lesson", "play", "bread", "journey",
    "service", "story", "party", "coffee", "room", "song", "game", "meal",
)  # fmt: skip
_DAYS = (
    "on sunday", "last night", "in the city", "near the station", "this spring",
    "at the lake", "after work", "by the sea", "on the island", "two weeks ago",
)  # fmt: skip
_MANNERS = ("really", "truly", "quite", "indeed", "not", "hardly")
_NEGATIONS = 2  # the last ones of _MANNERS
_ADJECTIVES = (
    (
        "awful", "terrible", "boring", "dreadful", "horrible", "poor", "disappointing", "bad",
        "miserable", "unpleasant", "dull", "annoying", "nasty", "weak", "ugly", "painful",
    ),
    (
        "wonderful", "great", "lovely", "excellent", "delightful", "superb", "pleasant", "good",
        "brilliant", "amazing", "charming", "splendid", "perfect", "fantastic", "fine", "beautiful",
    ),
)  # fmt: skip

_PERSONS = (
    "nurse", "farmer", "teacher", "painter", "sailor",
    "baker", "lawyer", "student", "driver", "singer",
)  # fmt: skip
_VERBS = ("waited", "sang", "rested", "smiled", "talked", "laughed")
_LEADS = (
    "there was somebody who", "there was a person who", "it was someone who", "we met one who",
)  # fmt: skip
#: Two aspects, each with five specific phrases of either sort: (specific, general).
_ASPECTS = (
    (
        ("in the kitchen", "in the library", "in the bedroom", "in the office", "in the hallway",
         "in the garden", "on the beach", "in the forest", "by the river", "on the hill"),
        ("indoors", "outdoors"),
    ),
    (
        ("before breakfast", "at dawn", "at sunrise", "at eight in the morning", "after waking up",
         "after dinner", "at midnight", "at dusk", "at sunset", "before going to bed"),
        ("early in the day", "late in the day"),
    ),
)  # fmt: skip
_ADDITIONS = ("with an old friend", "because of a letter")

#: Similarity and entities: "the {person} {verb} {thing} {place} {time}".
_SCENE = (
    tuple(f"the {person}" for person in _PERSONS[:8]),
    ("carried", "painted", "dropped", "bought", "found", "sold"),
    ("a red lamp", "an old chair", "a small boat", "a green coat", "a heavy box", "a silver ring"),
    ("in the kitchen", "on the beach", "at the market", "near the bridge",
     "under the stairs", "on the train"),
    ("at noon", "at midnight", "last winter", "on monday", "before dinner", "during the storm"),
)  # fmt: skip
_ROLES = ("-WHO", "", "-WHAT", "-WHERE", "-WHEN")  # of the slots of a scene

_Written = tuple[Text, str, Any]  # text, second text or "", label: number or tags' indices


@dataclass(frozen=True)
class Grammar:
    """A class and a digit for every slot give one example."""

    kind: Kind
    classes: int  # 1 where texts have no class
    radices: tuple[int, ...]
    write: Callable[[int, Sequence[int]], _Written]

    @property
    def size(self) -> int:
        """Number of examples of one class."""
        return math.prod(self.radices)


def _sentiment(label: int, digits: Sequence[int]) -> _Written:
    opening, noun, day, manner, adjective = digits
    negated = manner >= len(_MANNERS) - _NEGATIONS
    word = _ADJECTIVES[label ^ negated][adjective]
    text = f"{_OPENINGS[opening]} the {_NOUNS[noun]} {_DAYS[day]} was {_MANNERS[manner]} {word}"
    return text, "", label


def _inference(label: int, digits: Sequence[int]) -> _Written:
    person, verb, lead, pick, *values = digits
    specific = [phrases[value] for (phrases, _), value in zip(_ASPECTS, values, strict=True)]
    if label == 1:  # neutral
        said = _ADDITIONS[pick]
    else:
        sort = values[pick] // 5
        said = _ASPECTS[pick][1][sort if label == 0 else 1 - sort]
    premise = f"the {_PERSONS[person]} {_VERBS[verb]} {' '.join(specific)}"
    return premise, f"{_LEADS[lead]} {_VERBS[verb]} {said}", label


def _similarity(_: int, digits: Sequence[int]) -> _Written:
    *slots, differing = digits  # bit s of `differing`: the sentences differ in slot s
    total = sum(slots)
    one, other = [], []
    for position, (digit, phrases) in enumerate(zip(slots, _SCENE, strict=True)):
        # a step that depends on the sentence, so that a phrase has no fixed counterpart
        step = 1 + total % (len(phrases) - 1) if differing >> position & 1 else 0
        one.append(phrases[digit])
        other.append(phrases[(digit + step) % len(phrases)])
    return " ".join(one), " ".join(other), 5.0 - differing.bit_count()


def _entities(_: int, digits: Sequence[int]) -> _Written:
    opening, time_first, *slots = digits
    parts = [
        (phrases[digit], role) for digit, phrases, role in zip(slots, _SCENE, _ROLES, strict=True)
    ]
    if time_first:
        parts.insert(0, parts.pop())
    words, tags = [], []
    for phrase, role in [(_OPENINGS[opening], ""), *parts]:
        phrase_words = phrase.split()
        words += phrase_words
        tags += [f"{mark}{role}" if role else "O" for mark in "B" + "I" * (len(phrase_words) - 1)]
    return words, "", [TAGS.index(tag) for tag in tags]


GRAMMARS = {
    "synthetic/sentiment": Grammar(
        "classes",
        2,
        (len(_OPENINGS), len(_NOUNS), len(_DAYS), len(_MANNERS), len(_ADJECTIVES[0])),
        _sentiment,
    ),
    "synthetic/inference": Grammar(
        "classes", 3, (len(_PERSONS), len(_VERBS), len(_LEADS), 2, 10, 10), _inference
    ),
    "synthetic/similarity": Grammar(
        "score", 1, (*(len(part) for part in _SCENE), 2**5), _similarity
    ),
    "synthetic/entities": Grammar(
        "tags", 1, (len(_OPENINGS), 2, *(len(part) for part in _SCENE)), _entities
    ),
}


def vocabulary() -> list[str]:
    """Return all words of the grammars, sorted; the tokenizer of backbone 'tiny' knows them."""
    phrases = ["the", "was", *_OPENINGS, *_NOUNS, *_DAYS, *_MANNERS, *_PERSONS, *_VERBS, *_LEADS]
    phrases += _ADDITIONS
    for group in (*_ADJECTIVES, *_SCENE, *(part for aspect in _ASPECTS for part in aspect)):
        phrases += group
    return sorted({word for phrase in phrases for word in phrase.split()})
