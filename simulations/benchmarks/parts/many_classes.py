"""Tasks with many classes for `simulations.benchmarks.heads`, written to a temporary folder.

``intents`` is synthetic: a request made of an action and an object, the class is the pair.
``mentions`` and ``cloze`` are made from the texts of a GLUE task: the class is the one of many
frequent nouns that a text contains, left in place or cut out. The texts belong to others, so the
files are never kept.
"""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

from fedpeft.randomness import generator

BLANK = "___"
LONGEST = 16  # words of a text
PER_CLASS = 30  # texts of a class, a sixth of them held out
_WORD = re.compile(r"[a-z]+|[^\sa-z]")
_DETERMINERS = frozenset(
    ["a", "an", "the", "this", "his", "her", "its", "their", "our", "your", "my"]
)
_AFTER_A_NOUN = frozenset(
    [
        "of",
        "is",
        "was",
        "are",
        "were",
        "in",
        "and",
        "to",
        "that",
        "with",
        "for",
        "at",
        "or",
        "on",
        "as",
        "by",
        ",",
        ".",
        "?",
        ";",
        ":",
    ]
)

# Wording differs between texts of a class, so that its name does not occur in most of them.
ACTIONS = {
    "cancel": ("cancel", "call off", "I no longer want", "please stop", "get rid of"),
    "change": ("change", "modify", "I need to alter", "could you update", "switch"),
    "pay": (
        "pay for",
        "settle the bill for",
        "where do I pay",
        "charge my card for",
        "transfer the money for",
    ),
    "find": ("find", "where is", "I am looking for", "locate", "search for"),
    "complain": (
        "complain about",
        "I am unhappy with",
        "this is terrible:",
        "file a complaint about",
        "I was treated badly with",
    ),
    "buy": ("buy", "order", "I would like to get", "purchase", "book"),
    "compare": (
        "compare",
        "which is better for",
        "what are the alternatives for",
        "show the differences of",
        "help me choose",
    ),
    "repair": ("repair", "fix", "there is a problem with", "it stopped working:", "who can mend"),
    "share": ("share", "send a friend", "forward", "give others access to", "pass on"),
    "rate": ("rate", "write a review of", "give stars to", "how good is", "recommend"),
}
OBJECTS = {
    "flight": ("my flight", "the plane to Rome", "the trip by air"),
    "hotel": ("the hotel", "my room in the inn", "the place to stay overnight"),
    "insurance": ("the insurance", "my policy", "the coverage against damage"),
    "meal": ("the meal", "my dinner", "the food from the restaurant"),
    "phone": ("my phone", "the mobile", "the handset"),
    "concert": ("the concert", "the live music", "the show of the band"),
    "subscription": ("the subscription", "my membership", "the monthly plan"),
    "parcel": ("the parcel", "my package", "the delivery by mail"),
    "loan": ("the loan", "my mortgage", "the money I owe the bank"),
    "medicine": ("the medicine", "my pills", "the drug from the pharmacy"),
    "shoes": ("the shoes", "my sneakers", "the pair of boots"),
    "bicycle": ("the bicycle", "my bike", "the two-wheeler"),
    "course": ("the course", "my lessons", "the class at the university"),
    "electricity": ("the electricity", "my power supply", "the energy at home"),
    "photo": ("the photo", "my picture", "the snapshot"),
}
PREFIXES = ("", "hello, ", "quick question: ", "since yesterday I try this: ", "hi there, ")
SUFFIXES = ("", " please", " as soon as possible", " today", " for my mother", ", thanks")


def intents(folder: Path, seed: int, train: int = 2250, dev: int = 900, classes: int = 150) -> int:
    """Write a synthetic task of at most 150 classes; return their number."""
    names = list(product(ACTIONS, OBJECTS))[:classes]
    draw = generator(seed, "benchmark/intents")

    def text(action: str, target: str) -> str:
        parts = (PREFIXES, ACTIONS[action], OBJECTS[target], SUFFIXES)
        before, verb, noun, after = (part[draw.integers(len(part))] for part in parts)
        return f"{before}{verb} {noun}{after}"

    rows = [
        (text(*names[index % len(names)]), " ".join(names[index % len(names)]))
        for index in range(train + dev)
    ]
    _write(folder, rows[:train], rows[train:])
    return len(names)


def nouns(folder: Path, texts: Iterable[str], seed: int, cut: bool, classes: int = 150) -> int:
    """Write a task: which of the most frequent nouns does a text contain? Return the classes.

    Args:
        folder: where to write.
        texts: the texts; those with none of the nouns or several are left out.
        seed: seed of the choice of texts.
        cut: replace the noun by BLANK (cloze).
        classes: number of nouns.
    """
    lines = [" ".join(_WORD.findall(text.lower())) for text in dict.fromkeys(texts)]
    frequent = set(frequent_nouns(lines, classes))
    holding: defaultdict[str, list[str]] = defaultdict(list)
    for line in lines:
        words = line.split()
        found = set(words) & frequent
        if len(found) == 1 and len(words) <= LONGEST:
            (noun,) = found
            blanks = (noun, f"{noun}s") if cut else ()
            holding[noun].append(" ".join(BLANK if word in blanks else word for word in words))
    draw = generator(seed, "benchmark/nouns")
    train, dev = [], []
    for noun in sorted(holding):
        order = draw.permutation(len(holding[noun]))[:PER_CLASS]
        rows = [(holding[noun][index], noun) for index in order]
        dev += rows[: len(rows) // 6]
        train += rows[len(rows) // 6 :]
    _write(folder, [train[i] for i in draw.permutation(len(train))], dev)
    return len(holding)


def frequent_nouns(lines: Iterable[str], count: int) -> list[str]:
    """Return the most frequent words that stand where nouns do, most frequent first.

    After a determiner in at least a tenth, and before a word that follows nouns in at least half of
    their occurrences.
    """
    total, after, before = Counter[str](), Counter[str](), Counter[str]()
    for line in lines:
        words = ["", *line.split(), "."]
        for left, word, right in zip(words, words[1:], words[2:], strict=False):
            total[word] += 1
            after[word] += left in _DETERMINERS
            before[word] += right in _AFTER_A_NOUN
    nouns = [
        word
        for word, times in total.most_common()
        if len(word) > 3 and after[word] >= times / 10 and before[word] >= times / 2
    ]
    return nouns[:count]


def glue_texts(folder: Path, task: str) -> Iterator[str]:
    """Yield all texts of the training file of a GLUE task, ``folder``/``task``/train.tsv."""
    csv.field_size_limit(1 << 24)
    with (folder / task / "train.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield from (value for key, value in row.items() if key.startswith("sentence"))


def _write(folder: Path, train: list[tuple[str, str]], dev: list[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", train), ("dev", dev)):
        content = "".join(f"{text}\t{label}\n" for text, label in rows)
        (folder / f"{name}.tsv").write_text(f"text\tlabel\n{content}", encoding="utf-8")
