"""Partition a task's training examples over the clients of a simulation or trial.

Uses Flower's partitioners with two corrections: examples are shuffled first, and a Dirichlet
partition never fails or leaves a client without examples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from clients.partition import Partition
from fedpeft.batches.encoded import offsets_of
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.settings import PartitionSection
from fedpeft.randomness import generator
from fedpeft.tasks import Task, TaskInfo


def partition(task: Task, experiment: Experiment) -> Partition:
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
            f"{section.min_examples}: the task has only {examples} training examples; "
            f"fewer clients need fewer, task.train_limit may allow more"
        )
    draw = generator(experiment.seed, "partition")
    rows = _KINDS[section.kind](task, section, clients, draw)
    smallest = int(rows.sizes.min())
    if smallest < section.min_examples:
        # Moving examples would give them a wrong owner, or a client a class it must not have.
        if section.kind in ("natural", "pathological"):
            raise UserError(
                f"partition.min_examples = {section.min_examples}: with partition.kind = "
                f"'{section.kind}' a client has only {smallest}"
            )
        rows = Partition.of(fill_up(rows, section.min_examples, draw))
    return rows.ordered()


def check_kind(info: TaskInfo, experiment: Experiment) -> None:
    """Raise UserError if the kind of partition does not fit the task; needs no data."""
    section, clients = experiment.partition, experiment.federation.clients
    if section.kind in ("dirichlet", "pathological") and info.kind != "classes":
        has = {"score": "is a score", "tags": "has tags", "text": "has texts to write"}
        labels, other = has[info.kind], "'bins', " if info.kind == "score" else ""
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


def fill_up(
    rows: Sequence[np.ndarray], minimum: int, draw: np.random.Generator
) -> list[np.ndarray]:
    """Move random examples from the largest clients to those with fewer than ``minimum``."""
    filled = list(rows)
    largest = [(-len(part), client) for client, part in enumerate(filled) if len(part) > minimum]
    heapify(largest)
    for client, part in enumerate(filled):
        for _ in range(len(part), minimum):
            giver = largest[0][1]
            taken = draw.integers(len(filled[giver]))
            filled[client] = np.append(filled[client], filled[giver][taken])
            filled[giver] = np.delete(filled[giver], taken)
            heapreplace(largest, (-len(filled[giver]), giver))
    return filled


def _iid(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Partition:
    """Give all clients as many examples, the first ones one more if that does not go up."""
    size, more = divmod(len(task.train), clients)
    sizes = size + (np.arange(clients) < more)
    return Partition(draw.permutation(len(task.train)), offsets_of(sizes))


def _quantity(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Partition:
    """Draw the sizes from a Dirichlet distribution; labels are iid."""
    order = draw.permutation(len(task.train))
    return _cut(order, draw.dirichlet(np.full(clients, section.alpha)))


def _dirichlet(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Partition:
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
) -> Partition:
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


def _bins(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Partition:
    """Give clients ranges of the score, mixed by 1 - strictness.

    As flwr-datasets' ContinuousPartitioner, which converts to float32: there time stamps of one
    day are all equal. Equal scores stay in random order.
    """
    noise = np.random.default_rng(int(draw.integers(2**31))).normal(size=len(task.train))
    order = draw.permutation(len(task.train))
    scores = task.train.labels[order]
    if section.strictness > 0:
        if not np.ptp(scores) > 0:
            raise UserError(
                f"partition.kind = 'bins': all scores are {scores[0]:g}; expected different "
                f"ones, or partition.kind = 'iid'"
            )
        away = scores - scores.mean()
        away /= np.abs(away).max()  # squares of huge scores would overflow
        noise = section.strictness * away / away.std() + (1 - section.strictness) * noise
    return Partition.of(np.array_split(order[np.argsort(noise, kind="stable")], clients))


def _natural(
    task: Task, section: PartitionSection, clients: int, draw: np.random.Generator
) -> Partition:
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
    rows = Partition.of([np.flatnonzero(inverse == owner) for owner in order])
    return replace(rows, names=tuple(names[order].tolist()))


_Kind = Callable[[Task, PartitionSection, int, np.random.Generator], Partition]
_KINDS: dict[str, _Kind] = {
    "iid": _iid,
    "dirichlet": _dirichlet,
    "pathological": _pathological,
    "quantity": _quantity,
    "natural": _natural,
    "bins": _bins,
}


def _cut(order: np.ndarray, shares: np.ndarray) -> Partition:
    """Split an array into consecutive pieces with the given shares."""
    ends = np.round(np.cumsum(shares) * len(order)).astype(int)[:-1]
    return Partition(order, np.array([0, *ends, len(order)]))


def _by_flower(
    partitioner: Any, labels: np.ndarray, clients: int, draw: np.random.Generator
) -> Partition:
    """Partition shuffled examples by one of Flower's partitioners; return indices."""
    from datasets import Dataset

    order = draw.permutation(len(labels))
    partitioner.dataset = Dataset.from_dict({"row": order, "label": labels[order]})
    try:
        return Partition.of(
            [
                np.asarray(partitioner.load_partition(client)["row"], dtype=np.int64)
                for client in range(clients)
            ]
        )
    except ValueError as error:  # too few examples of a class
        raise UserError(f"the examples cannot be partitioned this way: {error}") from None
