"""Pictures of a run: score and loss against rounds and bytes, and how the data was spread."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clients.partitioning import label_counts
from simulations.run import PARTITION

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedpeft.runtime import Runtime
    from fedpeft.tasks import Task
    from server.runfolder import RunFolder

FOLDER = "plots"
_MOST_CLIENTS = 100  # bars that can still be told apart


def draw_run(folder: RunFolder, runtime: Runtime) -> None:
    """Draw all pictures of a finished run into ``plots`` in its folder."""
    plots, info = folder.path / FOLDER, runtime.task.info
    plots.mkdir(exist_ok=True)
    experiment = runtime.experiment
    title = f"{experiment.task.name}: {experiment.method.name} on {experiment.backbone}"
    draw_curves(plots / "curves.png", folder.rounds(), info.metric, title)
    clients = json.loads((folder.path / PARTITION).read_text(encoding="utf-8"))["clients"]
    draw_partition(plots / "partition.png", [np.asarray(each) for each in clients], runtime.task)


def draw_curves(path: Path, rounds: Sequence[dict[str, Any]], metric: str, title: str) -> None:
    """Write the picture of ``curves`` to a file."""
    curves(rounds, metric, title).savefig(path, dpi=120)


def curves(rounds: Sequence[dict[str, Any]], metric: str, title: str) -> Figure:
    """Return score and training loss against rounds and against bytes sent so far.

    With privacy the loss stays with the clients, and epsilon takes its place.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    numbers = np.array([line["round"] for line in rounds])
    sent = (
        np.cumsum(
            [line["bytes"]["up"]["message"] + line["bytes"]["down"]["message"] for line in rounds]
        )
        / 1e6
    )
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    figure.suptitle(title)
    private = any(line.get("privacy") for line in rounds)
    told, name = ("epsilon", "epsilon") if private else ("loss", "training loss")
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for column, (x, label) in enumerate(((numbers, "round"), (sent, "training traffic, MB"))):
        scored = [
            (at, line["score"])
            for at, line in zip(x, rounds, strict=True)
            if line["score"] is not None
        ]
        axes[0, column].plot(*zip(*scored, strict=True), "o-", markersize=4, color="tab:blue")
        known = [np.nan if line[told] is None else line[told] for line in rounds]
        axes[1, column].plot(x, known, "o-", markersize=4, color="tab:orange")
        axes[1, column].set_xlabel(label)
    axes[1, 0].xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0, 0].set_ylabel(metric)
    axes[1, 0].set_ylabel(name)
    for axis in axes.flat:
        axis.grid(alpha=0.3)
    return figure


def draw_partition(path: Path, rows: Sequence[np.ndarray], task: Task) -> None:
    """Draw each client's examples: stacked by class, or as boxes of the scores."""
    from matplotlib.figure import Figure

    shown = rows[:_MOST_CLIENTS]
    figure = Figure(figsize=(max(5, 0.25 * len(shown) + 2), 4), layout="constrained")
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
    axis.legend(loc="upper left", bbox_to_anchor=(1, 1))
