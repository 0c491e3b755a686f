"""Tasks from small grammars: no download, any size, and a known best score.

Text i of a grammar is a function of i alone: i is written in mixed radix, one digit a slot of the
sentence. The label follows from the text by a rule, without noise, and no two indices give the
same text: so the best possible score is 1.0, by applying the rule.
"""

from __future__ import annotations

import math

import numpy as np

from fedpeft.errors import UserError
from fedpeft.randomness import generator
from fedpeft.settings import TaskSection
from fedpeft.tasks.base import Examples, Task, TaskInfo, tag_column
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
        TAGS,
        False,
        "f1",
        1.0,
        "who, what, where and when; made on the fly",
    ),
)


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
    return GRAMMARS[name].classes * GRAMMARS[name].size


def examples(name: str, indices: np.ndarray) -> Examples:
    """Return the examples of some indices in ``[0, space_size(name))``, in their order."""
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
    """Return ``count`` examples of one part, spread evenly over the classes, in random order."""
    grammar = GRAMMARS[info.name]
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
