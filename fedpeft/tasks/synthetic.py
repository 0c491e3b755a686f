"""Tasks from small grammars: no download, any size, and a known best score.

Text i of a grammar is a function of i alone: i is written in mixed radix, one digit a slot of the
sentence. The label follows from the text by a rule, without noise, and no two indices give the
same text: so the best possible score is 1.0, by applying the rule.

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

import numpy as np

from fedpeft.errors import UserError
from fedpeft.randomness import generator
from fedpeft.settings import TaskSection
from fedpeft.tasks.base import Examples, Kind, Task, TaskInfo, Text, tag_column

TRAIN_SIZE, DEV_SIZE = 4000, 1000
_TAGS = ("O", "B-WHO", "I-WHO", "B-WHAT", "I-WHAT", "B-WHERE", "I-WHERE", "B-WHEN", "I-WHEN")

TASKS = (
    TaskInfo(
        "synthetic/sentiment",
        "classes",
        ("negative", "positive"),
        False,
        "accuracy",
        1.0,
        "praise or blame, sometimes negated; made on the fly",
    ),
    TaskInfo(
        "synthetic/inference",
        "classes",
        ("entailment", "neutral", "contradiction"),
        True,
        "accuracy",
        1.0,
        "does the second sentence follow? made on the fly",
    ),
    TaskInfo(
        "synthetic/similarity",
        "score",
        (),
        True,
        "pearson",
        1.0,
        "in how many of five parts sentences agree; made on the fly",
    ),
    TaskInfo(
        "synthetic/entities",
        "tags",
        _TAGS,
        False,
        "f1",
        1.0,
        "who, what, where and when; made on the fly",
    ),
)

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
class _Grammar:
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
    return words, "", [_TAGS.index(tag) for tag in tags]


_GRAMMARS = {
    "synthetic/sentiment": _Grammar(
        "classes",
        2,
        (len(_OPENINGS), len(_NOUNS), len(_DAYS), len(_MANNERS), len(_ADJECTIVES[0])),
        _sentiment,
    ),
    "synthetic/inference": _Grammar(
        "classes", 3, (len(_PERSONS), len(_VERBS), len(_LEADS), 2, 10, 10), _inference
    ),
    "synthetic/similarity": _Grammar(
        "score", 1, (*(len(part) for part in _SCENE), 2**5), _similarity
    ),
    "synthetic/entities": _Grammar(
        "tags", 1, (len(_OPENINGS), 2, *(len(part) for part in _SCENE)), _entities
    ),
}


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Return ``train_limit`` and ``eval_limit`` examples, 4,000 and 1,000 if these are 0.

    Which ones depends on the seed; train and dev have no text in common, not even those of
    different seeds. The classes are equally frequent to within one example.

    Raises:
        UserError: more examples than there are, or an owner column (there is none).
    """
    if owner_column:
        raise UserError(f"partition.column = '{owner_column}': task '{info.name}' has no columns")
    sizes = section.train_limit or TRAIN_SIZE, section.eval_limit or DEV_SIZE
    return Task(info, _draw(info, "train", sizes[0], seed), _draw(info, "eval", sizes[1], seed))


def space_size(name: str) -> int:
    """Return the number of different texts of a synthetic task."""
    return _GRAMMARS[name].classes * _GRAMMARS[name].size


def examples(name: str, indices: np.ndarray) -> Examples:
    """Return the examples of some indices in ``[0, space_size(name))``, in their order."""
    grammar = _GRAMMARS[name]
    digits = np.stack(np.unravel_index(indices // grammar.classes, grammar.radices), axis=1)
    written = [
        grammar.write(label, row)
        for label, row in zip((indices % grammar.classes).tolist(), digits.tolist(), strict=True)
    ]
    labels = [label for _, _, label in written]
    return Examples(
        [text for text, _, _ in written],
        [pair for _, pair, _ in written] if any(pair for _, pair, _ in written) else None,
        tag_column(labels)
        if grammar.kind == "tags"
        else np.array(labels, dtype=np.int64 if grammar.kind == "classes" else np.float64),
    )


def vocabulary() -> list[str]:
    """Return all words of the grammars, sorted; the tokenizer of backbone 'tiny' knows them."""
    phrases = ["the", "was", *_OPENINGS, *_NOUNS, *_DAYS, *_MANNERS, *_PERSONS, *_VERBS, *_LEADS]
    phrases += _ADDITIONS
    for group in (*_ADJECTIVES, *_SCENE, *(part for aspect in _ASPECTS for part in aspect)):
        phrases += group
    return sorted({word for phrase in phrases for word in phrase.split()})


def _draw(info: TaskInfo, part: str, count: int, seed: int) -> Examples:
    """Return ``count`` examples of one part, spread evenly over the classes, in random order."""
    grammar = _GRAMMARS[info.name]
    held_out = grammar.size // 8  # ranks below are the dev part of every class
    pool = held_out if part == "eval" else grammar.size - held_out
    if count > pool * grammar.classes:
        raise UserError(
            f"task.{part}_limit = {count}: task '{info.name}' has "
            f"{pool * grammar.classes} different examples for it"
        )
    random = generator(seed, f"{info.name}-{part}")
    indices = []
    for label in range(grammar.classes):
        size = count // grammar.classes + (label < count % grammar.classes)
        ranks = random.choice(pool, size, replace=False) + (0 if part == "eval" else held_out)
        indices.append(_scatter(ranks, grammar.size) * grammar.classes + label)
    return examples(info.name, random.permutation(np.concatenate(indices)))


def _scatter(ranks: np.ndarray, size: int) -> np.ndarray:
    """Return a fixed one-to-one map of ``range(size)``.

    Multiplying by nearly the golden section of the size spreads neighbouring ranks over all
    digits, so that train and dev have every word of every slot equally often.
    """
    factor = round(size * (math.sqrt(5) - 1) / 2)
    while math.gcd(factor, size) > 1:
        factor += 1
    return ranks.astype(np.int64) * factor % size
