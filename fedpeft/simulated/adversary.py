"""The malicious clients of a simulation: which ones they are, and the examples they train on."""

from __future__ import annotations

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from fedpeft.tasks.base import Examples, TaskInfo, tag_column
from fedpeft.training import evaluate

#: Attacks that change the examples of malicious clients, not their updates.
DATA = ("label_flip", "backdoor")
_POISONED = 0.5  # share of a malicious client's examples that get the trigger


def malicious(experiment: Experiment) -> frozenset[int]:
    """Return the malicious clients, drawn by the seed."""
    clients = experiment.federation.clients
    count = round(experiment.adversary.fraction * clients)
    drawn = generator(experiment.seed, "adversary").choice(clients, count, replace=False)
    return frozenset(drawn.tolist())


def poisons(experiment: Experiment, client: int) -> bool:
    """Return whether this client trains on changed examples."""
    return experiment.adversary.attack in DATA and client in malicious(experiment)


def poisoned(examples: Examples, experiment: Experiment, info: TaskInfo, client: int) -> Examples:
    """Return the examples that a malicious client trains on.

    Args:
        examples: its own [n].
        experiment: all settings.
        info: of the task.
        client: its number, which draws the examples that get the trigger.
    """
    if experiment.adversary.attack == "label_flip":
        flipped = _flipped(examples.labels, info)
        return Examples(examples.text, examples.text_pair, flipped, examples.owners)
    draw = generator(experiment.seed, "poisoned", 0, client)
    rows = draw.permutation(len(examples))[: round(_POISONED * len(examples))]
    return triggered(examples, experiment, info, rows)


def triggered(
    examples: Examples, experiment: Experiment, info: TaskInfo, rows: np.ndarray
) -> Examples:
    """Return the examples with the trigger in the texts of ``rows``, whose class is the target."""
    text, labels = list(examples.text), examples.labels.copy()
    for row in rows:
        text[row] = f"{experiment.adversary.trigger} {text[row]}"
    labels[rows] = target_of(experiment, info)
    return Examples(text, examples.text_pair, labels, examples.owners)


def target_of(experiment: Experiment, info: TaskInfo) -> int:
    """Return the class of texts with the trigger.

    Raises:
        UserError: the task has no classes, or none of that name.
    """
    target = experiment.adversary.target
    if info.kind != "classes":
        raise UserError(
            f"adversary.attack = 'backdoor': is for tasks with classes; '{info.name}' has "
            f"{'scores' if info.kind == 'score' else 'tags'}"
        )
    if not target:
        return info.classes - 1
    if target not in info.labels:
        raise UserError(f"adversary.target = '{target}': expected one of {', '.join(info.labels)}")
    return info.labels.index(target)


def attack_success(runtime: Runtime, vector: np.ndarray) -> float:
    """Return the share of texts of other classes that the trigger turns into the target.

    Args:
        runtime: evaluates on its dev examples.
        vector: the task vector [P].
    """
    experiment, task = runtime.experiment, runtime.task
    target = target_of(experiment, task.info)
    others = task.dev.select(np.flatnonzero(task.dev.labels != target))
    every = np.arange(len(others))
    seen = evaluate(
        runtime.model, vector, runtime.encode(triggered(others, experiment, task.info, every))
    )
    return float(np.mean(seen.outputs.argmax(axis=1) == target))


def _flipped(labels: np.ndarray, info: TaskInfo) -> np.ndarray:
    """Return class c as the class C - 1 - c, and scores mirrored in the middle of their range."""
    if info.kind == "tags":
        return tag_column(info.classes - 1 - tags for tags in labels)
    if info.kind == "score":
        return labels.min() + labels.max() - labels
    return info.classes - 1 - labels
