"""Partition a task's training examples over the clients of a simulation or trial.

Uses Flower's partitioners with two corrections: examples are shuffled first, and a Dirichlet
partition never fails or leaves a client without examples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import PartitionSection
from fedpeft.files import write_atomic
from fedpeft.randomness import generator
from fedpeft.tasks import Task, TaskInfo

Rows = list[np.ndarray]  # for each client the indices of its examples, int64


def partition(task: Task, experiment: Experiment) -> Rows:
    """Return for each client the sorted indices of its training examples.

    Every example belongs to exactly one client, and every client has at least
    ``partition.min_examples``.

    Raises:
        UserError: too few examples for the clients, or a kind that does not fit the task.
    """
    check_kind(task.info, experiment)
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
    # Moving examples would give them a wrong owner, or a client a class it must not have.
    if section.kind not in ("natural", "pathological"):
        rows = fill_up(rows, section.min_examples, draw)
    elif smallest < section.min_examples:
        raise UserError(
            f"partition.min_examples = {section.min_examples}: with partition.kind = "
            f"'{section.kind}' a client has only {smallest}"
        )
    return [np.sort(client_rows) for client_rows in rows]


def check_kind(info: TaskInfo, experiment: Experiment) -> None:
    """Raise UserError if the kind of partition does not fit the task; needs no data."""
    section, clients = experiment.partition, experiment.federation.clients
    if section.kind in ("dirichlet", "pathological") and info.kind != "classes":
        score = info.kind == "score"
        labels, other = ("is a score", "'bins', ") if score else ("has tags", "")
        raise UserError(
            f"partition.kind = '{section.kind}' needs classes; '{info.name}' {labels}: "
            f"use {other}'iid' or 'quantity'"
        )
    if section.kind == "bins" and info.kind != "score":
        raise UserError(f"partition.kind = 'bins' is for scores; '{info.name}' has {info.kind}")
    if section.kind == "pathological" and section.classes > info.classes:
        raise UserError(
            f"partition.classes = {section.classes}: task '{info.name}' has {info.classes}"
        )
    if section.kind == "pathological" and max(clients, section.classes) < info.classes:
        raise UserError(
            f"partition.kind = 'pathological': federation.clients = {clients} with "
            f"{section.classes} classes each need not hold all {info.classes} of "
            f"'{info.name}'; use at least {info.classes} clients"
        )


def fill_up(rows: Rows, minimum: int, draw: np.random.Generator) -> Rows:
    """Move random examples from the largest clients to those with fewer than ``minimum``."""
    rows = list(rows)
    for client in range(len(rows)):
        while len(rows[client]) < minimum:
            largest = max(range(len(rows)), key=lambda other: len(rows[other]))
            taken = draw.integers(len(rows[largest]))
            rows[client] = np.append(rows[client], rows[largest][taken])
            rows[largest] = np.delete(rows[largest], taken)
    return rows


def digest(rows: Rows) -> str:
    """Return the SHA-256 over the indices of all clients."""
    clients = [client_rows.tolist() for client_rows in rows]
    return hashlib.sha256(json.dumps(clients).encode()).hexdigest()


def save(path: Path, rows: Rows, kind: str, task: Task) -> None:
    """Write a partition with its digest and each client's number of examples per label."""
    clients = [client_rows.tolist() for client_rows in rows]
    counts = {"labels": [*task.info.labels], "counts": label_counts(rows, task).tolist()}
    content = {"kind": kind, "digest": digest(rows), "clients": clients, **counts}
    write_atomic(path, json.dumps(content) + "\n")


def label_counts(rows: Sequence[np.ndarray], task: Task) -> np.ndarray:
    """Return the number of examples of each client and label, int [clients, C].

    C is 0 for scores. For tags, words are counted.
    """
    labels, classes = task.train.labels, len(task.info.labels)
    tagged = labels.dtype == object  # an array of tags for every text
    by_client = [np.concatenate(list(labels[r])) if tagged else labels[r] for r in rows]
    if not classes:
        return np.zeros((len(rows), 0), dtype=np.int64)
    return np.stack([np.bincount(values, minlength=classes) for values in by_client])


def _iid(task: Task, section: PartitionSection, clients: int, draw: np.random.Generator) -> Rows:
    return np.array_split(draw.permutation(len(task.train)), clients)


def _quantity(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """Draw the sizes from a Dirichlet distribution; labels are iid."""
    order = draw.permutation(len(task.train))
    return _cut(order, draw.dirichlet(np.full(clients, section.alpha)))


def _dirichlet(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """Draw each class's shares from a Dirichlet (Yurochkin et al. 2019, arXiv 1905.12022)."""
    from flwr_datasets.partitioner import DirichletPartitioner

    # No minimum here: the partitioner would redraw until it is met, and fail for small alpha.
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
    """Give every client ``classes`` classes (McMahan et al. 2017, arXiv 1602.05629)."""
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
    """Give clients ranges of the score, mixed by 1 - strictness."""
    from flwr_datasets.partitioner import ContinuousPartitioner

    partitioner = ContinuousPartitioner(
        clients, "label", section.strictness, shuffle=False, seed=int(draw.integers(2**31))
    )
    return _by_flower(partitioner, task.train.labels, clients, draw)


def _natural(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Rows:
    """Make one client of each value of the id column, the largest first."""
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


def _cut(order: np.ndarray, shares: np.ndarray) -> Rows:
    """Split an array into consecutive pieces with the given shares."""
    ends = np.round(np.cumsum(shares) * len(order)).astype(int)[:-1]
    return np.split(order, ends)


def _by_flower(
    partitioner: Any, labels: np.ndarray, clients: int, draw: np.random.Generator
) -> Rows:
    """Partition shuffled examples by one of Flower's partitioners; return indices."""
    from datasets import Dataset

    order = draw.permutation(len(labels))
    partitioner.dataset = Dataset.from_dict({"row": order, "label": labels[order]})
    try:
        return [
            np.asarray(partitioner.load_partition(client)["row"], dtype=np.int64)
            for client in range(clients)
        ]
    except ValueError as error:  # too few examples of a class, or all scores are equal
        raise UserError(f"the examples cannot be partitioned this way: {error}") from None
