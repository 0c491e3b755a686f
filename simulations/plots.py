"""Plots of a run: score and loss against rounds and bytes, and the partition of the data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from clients.partition import Partition, label_counts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedpeft.experiment.config import Experiment
    from fedpeft.runtime import Runtime
    from fedpeft.tasks import Task
    from server.runfolder import RunFolder

FOLDER = "plots"
_MOST_CLIENTS = 100  # more bars cannot be distinguished
_NAMES = 16  # in a column of a legend


def draw_run(folder: RunFolder, runtime: Runtime) -> None:
    """Draw all plots of a finished run into ``plots`` in its folder."""
    from clients.data import partition_of

    draw_curves(folder, runtime.experiment, runtime.task.info.metric)
    rows = partition_of(runtime)
    draw_partition(folder.path / FOLDER / "partition.png", rows, runtime.task)


def draw_curves(folder: RunFolder, experiment: Experiment, metric: str) -> None:
    """Write the figure of ``curves`` into ``plots`` in a run's folder."""
    (folder.path / FOLDER).mkdir(exist_ok=True)
    curves(folder, experiment, metric).savefig(folder.path / FOLDER / "curves.png", dpi=120)


def curves(folder: RunFolder, experiment: Experiment, metric: str) -> Figure:
    """Return a figure of score and training loss against rounds and against bytes sent so far.

    A simulation with devices shows virtual time, too. A private run shows epsilon in place of the
    loss, which stays with the clients.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rounds = folder.rounds()
    numbers = np.array([line["round"] for line in rounds])
    sent = (
        np.cumsum(
            [line["bytes"]["up"]["message"] + line["bytes"]["down"]["message"] for line in rounds]
        )
        / 1e6
    )
    against = [(numbers, "round"), (sent, "training traffic, MB")]
    if rounds[-1].get("virtual") is not None:
        against.append((np.array([line["virtual"] for line in rounds]) / 60, "virtual minutes"))
    figure = Figure(figsize=(4.5 * len(against), 6.5), layout="constrained")
    figure.suptitle(f"{experiment.task.name}: {experiment.method.name} on {experiment.backbone}")
    private = any(line.get("privacy") for line in rounds)
    axes = figure.subplots(2, len(against), sharex="col", sharey="row")
    for column, (x, label) in enumerate(against):
        scored = [
            (at, line["score"])
            for at, line in zip(x, rounds, strict=True)
            if line["score"] is not None
        ]
        axes[0, column].plot(*zip(*scored, strict=True), "o-", markersize=4, color="tab:blue")
        values = [line["epsilon"] if private else line["loss"] for line in rounds]
        known = [np.nan if value is None else value for value in values]
        axes[1, column].plot(x, known, "o-", markersize=4, color="tab:orange")
        axes[1, column].set_xlabel(label)
    axes[1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel(metric)
    axes[1, 0].set_ylabel("epsilon" if private else "training loss")
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure


def draw_partition(path: Path, rows: Partition, task: Task) -> None:
    """Draw each client's examples: stacked bars of classes, or box plots of scores."""
    from matplotlib.figure import Figure

    shown = Partition.of(rows[:_MOST_CLIENTS])
    width = max(3, 0.25 * len(shown)) + 2 * max(1, _columns(task.info.labels))
    figure = Figure(figsize=(width, 4), layout="constrained")
    axis = figure.subplots()
    if task.info.labels:
        _stacked_bars(axis, label_counts(shown, task), task.info.labels)
        axis.set_ylabel(f"training {'words' if task.info.kind == 'tags' else 'examples'}")
    else:
        scores = [task.train.labels[r] for r in shown]
        axis.boxplot(scores, positions=range(len(shown)), showfliers=False)
        axis.set_ylabel("score")
    axis.set_xticks(range(0, len(shown), max(1, len(shown) // 10)))
    axis.set_xticklabels([str(client) for client in axis.get_xticks()])
    more = f" (first {len(shown)} of {len(rows)})" if len(rows) > len(shown) else ""
    axis.set_xlabel(f"client{more}")
    figure.savefig(path, dpi=120)


def _stacked_bars(axis: Axes, counts: np.ndarray, names: Sequence[str]) -> None:
    bottom = np.zeros(len(counts))
    for label, name in enumerate(names):
        heights = counts[:, label]
        axis.bar(range(len(counts)), heights, bottom=bottom, label=name)
        bottom += heights
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1), ncols=_columns(names))


def _columns(names: Sequence[str]) -> int:
    """Return the number of columns of a legend."""
    return -(-len(names) // _NAMES)
