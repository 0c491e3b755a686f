"""Tasks from small grammars: no download, any size, and a known best score.

Text i of a grammar is a function of i, written in mixed radix with one digit per slot of the
sentence. The label follows from the text by a rule without noise, and all texts differ, so the best
possible score is 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.settings import TaskSection
from fedpeft.randomness import generator
from fedpeft.tasks.base import Examples, Task, TaskInfo, Text, tag_column
from fedpeft.tasks.grammars import GRAMMARS, TAGS

TRAIN_SIZE, DEV_SIZE = 4000, 1000

TASKS = (
    TaskInfo(
        "synthetic/sentiment",
        "classes",
        ("negative", "positive"),
        False,
        "accuracy",
        1.0,
        "praise or blame, sometimes negated; generated",
    ),
    TaskInfo(
        "synthetic/inference",
        "classes",
        ("entailment", "neutral", "contradiction"),
        True,
        "accuracy",
        1.0,
        "does the second sentence follow? generated",
    ),
    TaskInfo(
        "synthetic/similarity",
        "score",
        (),
        True,
        "pearson",
        1.0,
        "number of the five parts in which two sentences agree; generated",
    ),
    TaskInfo(
        "synthetic/crowd",
        "classes",
        ("negative", "positive"),
        False,
        "accuracy",
        1.0,
        "praise or blame after an unrelated clause, for millions of examples; generated",
    ),
    TaskInfo(
        "synthetic/entities",
        "tags",
        TAGS,
        False,
        "f1",
        1.0,
        "who, what, where and when; generated",
    ),
)


def load(info: TaskInfo, section: TaskSection, seed: int, owner_column: str) -> Task:
    """Generate ``train_limit`` and ``eval_limit`` examples, by default 4,000 and 1,000.

    The seed selects them. Train and dev never share a text, also with different seeds. The numbers
    of examples per class differ by at most one.

    Raises:
        UserError: more examples than the grammar has, or an owner column is given.
    """
    if owner_column:
        raise UserError(f"partition.column = '{owner_column}': task '{info.name}' has no columns")
    sizes = section.train_limit or TRAIN_SIZE, section.eval_limit or DEV_SIZE
    return Task(info, _draw(info, "train", sizes[0], seed), _draw(info, "eval", sizes[1], seed))


def examples(name: str, indices: np.ndarray) -> Examples:
    """Return the examples with these indices, each from 0 to classes * size - 1, in order."""
    grammar = GRAMMARS[name]
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


def _draw(info: TaskInfo, part: str, count: int, seed: int) -> Examples:
    """Return ``count`` examples of one part in random order, balanced over the classes."""
    grammar = GRAMMARS[info.name]
    held_out = grammar.size // 8  # lower ranks are the dev part of every class
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
    drawn = random.permutation(np.concatenate(indices))
    return _Unwritten(info.name, drawn) if grammar.kind == "classes" else examples(info.name, drawn)


class _Unwritten(Examples):
    """Examples of a grammar with classes; their texts are written when they are first read.

    A federation of a million clients reads the texts of those that train.

    Args:
        name: of the task.
        indices: of the examples, int64 [n].
    """

    _name: str
    _indices: np.ndarray

    def __init__(self, name: str, indices: np.ndarray) -> None:
        labels = indices % GRAMMARS[name].classes
        vars(self).update(_name=name, _indices=indices, labels=labels, owners=None)

    def __len__(self) -> int:
        return len(self._indices)

    @cached_property
    def _written(self) -> Examples:
        return examples(self._name, self._indices)

    @property
    def text(self) -> Sequence[Text]:
        """The texts."""
        return self._written.text

    @property
    def text_pair(self) -> list[str] | None:
        """Second texts, or None."""
        return self._written.text_pair

    def content(self) -> Iterator[bytes]:
        """Yield bytes that determine all texts and labels."""
        yield self._name.encode()
        yield self._indices.tobytes()

    def select(self, rows: np.ndarray) -> Examples:
        """Return the rows of an index array, in that order."""
        return _Unwritten(self._name, self._indices[rows])


def _scatter(ranks: np.ndarray, size: int) -> np.ndarray:
    """Permute ``range(size)``.

    Multiplying by about size times the golden ratio spreads neighboring ranks over all digits, so
    that every word of every slot is equally frequent in train and dev.
    """
    factor = round(size * (math.sqrt(5) - 1) / 2)
    while math.gcd(factor, size) > 1:
        factor += 1
    return ranks.astype(np.int64) * factor % size
