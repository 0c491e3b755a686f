"""Tasks: named data sets with labels and a metric.

To add a family of tasks, add a module with ``TASKS`` and ``load`` and an entry in ``_FAMILIES``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from fedpeft.errors import UserError, nearest
from fedpeft.experiment.settings import TaskSection
from fedpeft.randomness import generator
from fedpeft.tasks import conll, custom, glue, synthetic
from fedpeft.tasks.base import Examples, Kind, Task, TaskInfo

__all__ = [
    "Examples",
    "Kind",
    "Task",
    "TaskInfo",
    "available_tasks",
    "checked_info",
    "described",
    "load_task",
    "local_files",
]

_Load = Callable[[TaskInfo, TaskSection, int, str], Task]
_FAMILIES = (synthetic, glue, conll, custom)
_REGISTRY = {info.name: (info, family.load) for family in _FAMILIES for info in family.TASKS}


def available_tasks() -> list[TaskInfo]:
    """Return the tasks that ``task.name`` accepts."""
    return [info for info, _ in _REGISTRY.values()]


def described(section: TaskSection) -> TaskInfo | None:
    """Return a task's description without its data; None if only the data names the labels.

    Raises:
        UserError: unknown task.
    """
    info, _ = _registered(section.name)
    return custom.described(info, section) if section.name == "custom" else info


def checked_info(section: TaskSection, owner_column: str = "") -> TaskInfo:
    """Return a task's description; check that its files exist.

    Tables of the user are read: a wrong column or label shows now.

    Raises:
        UserError: unknown task, or its data is missing, or a table is invalid.
    """
    info, _ = _registered(section.name)
    if info in custom.TASKS:
        return custom.load(info, section, 0, owner_column).info
    for family in (glue, conll):
        if info in family.TASKS:
            family.files(info, section)
    return info


def local_files(section: TaskSection) -> tuple[Path, ...]:
    """Return the files of this machine that ``load_task`` reads; none if they are missing.

    Files of the hub are not among them: they do not change while a process runs.

    Raises:
        UserError: unknown task.
    """
    info, _ = _registered(section.name)
    family = next(family for family in _FAMILIES if info in family.TASKS)
    if family is synthetic or (family is not custom and not section.path):
        return ()
    try:
        paths = family.files(info, section)
    except UserError:  # where nodes alone have data; otherwise the reader of the data says so
        return ()
    return tuple(
        file
        for path in paths
        for file in (sorted(path.rglob("*")) if path.is_dir() else [path])
        if file.is_file()
    )


def load_task(section: TaskSection, seed: int = 0, owner_column: str = "") -> Task:
    """Load a task with its data.

    Args:
        section: the [task] section. ``train_limit`` and ``eval_limit`` keep a random subset that
            depends on the seed, in the order of the file. ``validation`` is held out after
            ``train_limit``.
        seed: the experiment's seed.
        owner_column: column that names the owner of each example; "" = none.

    Raises:
        UserError: unknown task, or its data is missing or invalid.
    """
    info, load = _registered(section.name)
    task = load(info, section, seed, owner_column)
    train, dev = _limit(task.train, section.train_limit, generator(seed, "train-limit")), task.dev
    if section.validation:
        train, dev = _divide(train, section.validation, generator(seed, "validation"))
    return Task(task.info, train, _limit(dev, section.eval_limit, generator(seed, "eval-limit")))


def _registered(name: str) -> tuple[TaskInfo, _Load]:
    if name not in _REGISTRY:
        raise UserError(f"task.name = '{name}': unknown task{nearest(name, _REGISTRY)}")
    return _REGISTRY[name]


def _limit(examples: Examples, limit: int, random: np.random.Generator) -> Examples:
    if limit == 0 or limit >= len(examples):
        return examples
    return examples.select(np.sort(random.choice(len(examples), limit, replace=False)))


def _divide(
    examples: Examples, share: float, random: np.random.Generator
) -> tuple[Examples, Examples]:
    """Split into examples to train on and a random share to evaluate on."""
    count = max(1, round(share * len(examples)))
    if count >= len(examples):
        raise UserError(
            f"task.validation = {share:g}: leaves none of the {len(examples)} training examples"
        )
    held_out = np.sort(random.choice(len(examples), count, replace=False))
    rest = np.setdiff1d(np.arange(len(examples)), held_out)
    return examples.select(rest), examples.select(held_out)
