"""Spreading a task's training examples over the clients of a simulation or a trial.

Flower's partitioners do the work where they are right; what they get wrong is mended here:
examples are shuffled first, Dirichlet never fails or leaves a client without examples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from fedpeft.randomness import generator
from fedpeft.settings import PartitionSection
from fedpeft.tasks import Task

Rows = list[np.ndarray]  # for each client the indices of its examples, int64


def partition(task: Task, experiment: Experiment) -> Rows:
    """Return for each client the sorted indices of its training examples.

    Every example belongs to exactly one client, and every client has at least
    ``partition.min_examples``.

    Raises:
        UserError: more clients than examples allow, a kind that does not fit the task.
    """
    section, clients = experiment.partition, experiment.federation.clients
    examples = len(task.train)
    if clients * section.min_examples > examples:
        raise UserError(
            f"federation.clients = {clients} with partition.min_examples = "
            f"{section.min_examples}: the task has only {examples} training examples"
        )
    draw = generator(experiment.seed, "partition")
    rows = _KINDS[section.kind](task, section, clients, draw)
    smallest = min(map(len, rows))
    # Whose example it is must not be made up, nor may a client get a class it should not have.
    if section.kind not in ("natural", "pathological"):
        rows = fill_up(rows, section.min_examples, draw)
    elif smallest < section.min_examples:
        raise UserError(
            f"partition.min_examples = {section.min_examples}: with partition.kind = "
            f"'{section.kind}' a client has only {smallest}"
        )
    return [np.sort(each) for each in rows]


def fill_up(rows: Rows, minimum: int, draw: np.random.Generator) -> Rows:
    """Move random examples from the largest clients to those with fewer than ``minimum``."""
    rows = [each.copy() for each in rows]
    for client in range(len(rows)):
        while len(rows[client]) < minimum:
            largest = max(range(len(rows)), key=lambda other: len(rows[other]))
            taken = draw.integers(len(rows[largest]))
            rows[client] = np.append(rows[client], rows[largest][taken])
            rows[largest] = np.delete(rows[largest], taken)
    return rows


def digest(rows: Rows) -> str:
    """Return SHA-256 over the indices of all clients."""
    clients = [each.tolist() for each in rows]
    return hashlib.sha256(json.dumps(clients).encode()).hexdigest()


def save(path: Path, rows: Rows, kind: str, task: Task) -> None:
    """Write a partition with its digest, and how many examples of each label a client has."""
    clients = [each.tolist() for each in rows]
    counts = {"labels": [*task.info.labels], "counts": label_counts(rows, task).tolist()}
    content = {"kind": kind, "digest": digest(rows), "clients": clients, **counts}
    write_atomic(path, json.dumps(content) + "\n")


def label_counts(rows: Sequence[np.ndarray], task: Task) -> np.ndarray:
    """Return how often each client's examples have each label, int [clients, C].

    C is 0 for scores; of tags words are counted.
    """
    labels, classes = task.train.labels, len(task.info.labels)
    tagged = labels.dtype == object  # an array of tags for every text
    of_client = [np.concatenate(list(labels[r])) if tagged else labels[r] for r in rows]
    if not classes:
        return np.zeros((len(rows), 0), dtype=np.int64)
    return np.stack([np.bincount(own, minlength=classes) for own in of_client])


def _iid(task: Task, section: PartitionSection, clients: int, draw: np.random.Generator) -> Rows:
    return np.array_split(draw.permutation(len(task.train)), clients)


def _quantity(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """Sizes from one Dirichlet draw, labels iid."""
    order = draw.permutation(len(task.train))
    return _cut(order, draw.dirichlet(np.full(clients, section.alpha)))


def _dirichlet(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """Each class is spread by its own Dirichlet draw (Yurochkin et al. 2019, arXiv 1905.12022)."""
    _need_classes(task, section)
    from flwr_datasets.partitioner import DirichletPartitioner

    # No minimum here: the partitioner would draw until it is met, and give up with small alpha.
    partitioner = DirichletPartitioner(
        clients,
        "label",
        section.alpha,
        min_partition_size=0,
        self_balancing=False,
        shuffle=False,
        seed=int(draw.integers(2**31)),
    )
    return _by_flower(partitioner, task.train.labels, clients, draw)


def _pathological(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """Every client has ``classes`` classes (McMahan et al. 2017, arXiv 1602.05629)."""
    _need_classes(task, section)
    classes = task.info.classes
    if section.classes > classes:
        raise UserError(
            f"partition.classes = {section.classes}: task '{task.info.name}' has {classes}"
        )
    if clients < classes and section.classes < classes:
        raise UserError(
            f"partition.kind = 'pathological': federation.clients = {clients} with "
            f"{section.classes} classes each need not hold all {classes} of "
            f"'{task.info.name}'; use at least {classes} clients"
        )
    from flwr_datasets.partitioner import PathologicalPartitioner

    partitioner = PathologicalPartitioner(
        clients,
        "label",
        section.classes,
        class_assignment_mode="first-deterministic",
        shuffle=False,
        seed=int(draw.integers(2**31)),
    )
    return _by_flower(partitioner, task.train.labels, clients, draw)


def _bins(task: Task, section: PartitionSection, clients: int, draw: np.random.Generator) -> Rows:
    """Clients have ranges of the score, mixed by 1 - strictness."""
    if task.info.kind != "score":
        raise UserError(
            f"partition.kind = 'bins' is for scores; '{task.info.name}' has {task.info.kind}"
        )
    from flwr_datasets.partitioner import ContinuousPartitioner

    partitioner = ContinuousPartitioner(
        clients, "label", section.strictness, shuffle=False, seed=int(draw.integers(2**31))
    )
    return _by_flower(partitioner, task.train.labels, clients, draw)


def _natural(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """One client for each value of the id column, the largest owners first."""
    if task.train.owners is None:
        raise UserError("partition.kind = 'natural' needs partition.column, the id column's name")
    names, inverse, counts = np.unique(
        np.array(task.train.owners), return_inverse=True, return_counts=True
    )
    if len(names) != clients:
        raise UserError(
            f"federation.clients = {clients}: column '{section.column}' has {len(names)} "
            f"different values; use federation.clients = {len(names)}"
        )
    order = np.argsort(-counts, kind="stable")
    return [np.flatnonzero(inverse == owner) for owner in order]


_Kind = Callable[[Task, PartitionSection, int, np.random.Generator], Rows]
_KINDS: dict[str, _Kind] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "pathological": _pathological,
    "quantity": _quantity,
    "natural": _natural,
    "bins": _bins,
}


def _need_classes(task: Task, section: PartitionSection) -> None:
    if task.info.kind != "classes":
        what, other = ("is a score", "'bins', ") if task.info.kind == "score" else ("has tags", "")
        raise UserError(
            f"partition.kind = '{section.kind}' needs classes; '{task.info.name}' {what}: "
            f"use {other}'iid' or 'quantity'"
        )


def _cut(order: np.ndarray, shares: np.ndarray) -> Rows:
    """Cut an array into consecutive pieces of the given shares."""
    ends = np.round(np.cumsum(shares) * len(order)).astype(int)[:-1]
    return np.split(order, ends)


def _by_flower(
    partitioner: Any, labels: np.ndarray, clients: int, draw: np.random.Generator
) -> Rows:
    """Have one of Flower's partitioners spread shuffled examples; return indices."""
    from datasets import Dataset

    order = draw.permutation(len(labels))
    partitioner.dataset = Dataset.from_dict({"row": order, "label": labels[order]})
    try:
        return [
            np.asarray(partitioner.load_partition(client)["row"], dtype=np.int64)
            for client in range(clients)
        ]
    except ValueError as error:  # too few examples of a class, scores that are all the same
        raise UserError(f"the examples cannot be spread so: {error}") from None
