"""Plots of a run: score and loss against rounds and bytes, and the partition of the data."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clients.partition import Partition, label_counts
from fedpeft.errors import printable

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
_NAMED = 20  # clients with their names below the axis
_LONGEST, _REASON = 24, 200  # characters of a client's name and of an error
_PLAIN: dict[Any, Any] = {"text.parse_math": False}  # names may contain dollar signs


@contextmanager
def isolated(name: str) -> Iterator[None]:
    """Let a picture fail alone: print one line, as the results matter more than their picture.

    Args:
        name: what is drawn.
    """
    try:
        with warnings.catch_warnings():
            # A box stands for a letter that the font lacks.
            warnings.filterwarnings("ignore", "Glyph", UserWarning)
            yield
    except Exception as error:
        reason = printable(f"{type(error).__name__}: {error}", _REASON)
        print(f"warning: {name} was not drawn ({reason})", file=sys.stderr)


def draw_run(folder: RunFolder, runtime: Runtime) -> None:
    """Draw all plots of a finished run into ``plots`` in its folder; see ``isolated``."""
    from clients.data import partition_of

    draw_curves(folder, runtime.experiment, runtime.task.info.metric)
    path = folder.path / FOLDER / "partition.png"
    with isolated(str(path)):
        draw_partition(path, partition_of(runtime), runtime.task)


def draw_curves(folder: RunFolder, experiment: Experiment, metric: str) -> None:
    """Write the figure of ``curves`` into ``plots`` in a run's folder; see ``isolated``."""
    path = folder.path / FOLDER / "curves.png"
    with isolated(str(path)):
        path.parent.mkdir(exist_ok=True)
        curves(folder, experiment, metric).savefig(path, dpi=120)


def curves(folder: RunFolder, experiment: Experiment, metric: str) -> Figure:
    """Return a figure of score and training loss against rounds and against bytes sent so far.

    A simulation with devices shows virtual time, too. A private run shows epsilon in place of the
    loss, which stays with the clients.
    """
    import matplotlib

    with matplotlib.rc_context(_PLAIN):
        return _curves(folder, experiment, metric)


def _curves(folder: RunFolder, experiment: Experiment, metric: str) -> Figure:
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
    import matplotlib

    with matplotlib.rc_context(_PLAIN):  # also saved in it: labels are made when they are drawn
        _partition(rows, task).savefig(path, dpi=120)


def _partition(rows: Partition, task: Task) -> Figure:
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
    if rows.names and len(rows) <= _NAMED:
        names = [printable(name, _LONGEST) for name in rows.names]
        axis.set_xticks(range(len(rows)), names, rotation=45, ha="right", rotation_mode="anchor")
    else:
        places = range(0, len(shown), max(1, len(shown) // 10))
        axis.set_xticks(places, [str(client) for client in places])
    more = f" (first {len(shown)} of {len(rows)})" if len(rows) > len(shown) else ""
    axis.set_xlabel(f"client{more}")
    return figure


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
