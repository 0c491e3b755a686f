"""Tables of the report: texts and sort keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Any

from fedpeft.readable import readable_bytes
from simulations.report.content import Content
from simulations.report.significance import Comparison
from simulations.report.summary import GROUP, PANEL, SERIES, at_budgets, finals, over_seeds
from simulations.report.summary import to_target as reached_by
from simulations.study.table import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_NONE = "–"


@dataclass(frozen=True)
class Value:
    """A table cell; ``key`` is the number it sorts by, None sorts as text."""

    text: str
    key: float | None = None


@dataclass(frozen=True)
class Table:
    """A table of the page."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Value]]

    @property
    def numeric(self) -> list[bool]:
        """For each column whether it holds numbers."""
        columns = range(len(self.columns))
        return [any(row[at].key is not None for row in self.rows) for at in columns]


def targets_table(frame: pd.DataFrame, targets: Mapping[str, float]) -> Table:
    """Return the rounds and bytes that each series needed to reach the target of its task."""
    columns = (
        "task",
        "series",
        "target",
        "seeds that reached it",
        "rounds",
        "payload up per client",
        "messages up + down, all clients",
    )
    rows = [
        (
            Value(row.panel),
            Value(row.series),
            _number(row.target),
            Value(f"{row.reached} of {row.seeds}" if row.reached else "not reached", row.reached),
            _number(row.round, ".1f"),
            _size(row.client_sent),
            _size(row.messages),
        )
        for row in reached_by(frame, targets).itertuples()
    ]
    return Table(columns, rows)


def budgets_table(frame: pd.DataFrame, budgets: Sequence[float]) -> Table:
    """Return each series' score within each budget."""
    within = at_budgets(frame, budgets)
    scores = {(row.panel, row.series, row.budget): row for row in within.itertuples()}
    names = frame[GROUP].drop_duplicates().itertuples(index=False)
    rows = [
        (
            Value(panel),
            Value(series),
            *(_score(scores.get((panel, series, budget))) for budget in budgets),
        )
        for panel, series in names
    ]
    return Table(("task", "series", *(f"≤ {readable_bytes(budget)}" for budget in budgets)), rows)


def frozen_table(means: pd.DataFrame) -> Table:
    """Return the scores of frozen backbones, see ``summary.frozen_means``."""
    rows = [
        (
            Value(row.panel),
            Value(row.backbone),
            Value(row.name),
            _number(row.score),
            Value(row.metric),
        )
        for row in means.itertuples(index=False)
    ]
    return Table(("task", "frozen backbone", "all data in one place", "score", "metric"), rows)


def results_table(frame: pd.DataFrame, content: Content) -> Table:
    """Return the results of all combinations of the axes except the seed.

    Columns without a value are left out, such as what a search chose in a study without one.
    """
    axes = list(
        dict.fromkeys(
            axis for cell, _ in content.finished for axis in cell.labels if axis != "seed"
        )
    )
    last = finals(frame)
    means = {(row.panel, row.series): row for row in over_seeds(last).itertuples()}
    results = {cell.name: finished.result for cell, finished in content.finished}
    columns = (
        *axes,
        "score, mean ± sd",
        "score of the start",
        "metric",
        "seeds",
        "examples scored",
        "P",
        "P of the head",
        "payload up per client and round",
        "message up per client and round",
        "sums up per client, before the first round",
        "messages up + down, all clients and rounds",
        "lr",
        "chosen by the search",
    )
    rows = []
    for row in last.drop_duplicates(GROUP).to_dict("records"):
        group = means[row[PANEL], row[SERIES]]
        up = results[row["cell"]]["bytes"]["per_client_round_up"]
        rows.append(
            (
                *(Value(row[f"axis.{axis}"]) for axis in axes),
                _score(group, seeds=False),
                _number(row.get("start_score")),
                Value(row["metric"]),
                _number(group.n, "d"),
                _number(row["evaluated"], ",d"),
                _number(row["vector_size"], ",d"),
                _number(row["head_size"], ",d"),
                _size(up["payload"]),
                _size(up["message"]),
                _size(row.get("start_up_payload", 0) / row["clients"]),
                _size(row["sent_up_message"] + row["sent_down_message"]),
                _number(row["lr"], "g"),
                Value(_chosen(row["cell"], content)),
            )
        )
    used = [at for at in range(len(columns)) if any(row[at].text != _NONE for row in rows)]
    return Table([columns[at] for at in used], [[row[at] for at in used] for row in rows])


def _chosen(cell: str, content: Content) -> str:
    best = content.best.get(cell)
    if best is None:
        return _NONE
    settings = ", ".join(f"{key} = {value}" for key, value in best.values.items())
    return f"{settings} (at the edge: {', '.join(best.edges)})" if best.edges else settings


def published_table(frame: pd.DataFrame, content: Content) -> Table | None:
    """Return published scores beside the measured ones with the same labels; None without any."""
    if not content.study.published:
        return None
    last = finals(frame)
    rows = []
    for figure in content.study.published:
        matching = last
        for axis, label in figure.where.items():
            column = f"axis.{axis}"
            matching = matching[matching[column] == label] if column in last else matching[:0]
        means = list(over_seeds(matching).itertuples())
        measured = _score(means[0]) if len(means) == 1 else Value("several" if means else _NONE)
        spread = f" ± {figure.deviation:g}" if figure.deviation is not None else ""
        rows.append(
            (
                Value(" · ".join(figure.where.values())),
                Value(f"{figure.score:g}{spread}", figure.score),
                Value(figure.source),
                measured,
                Value(means[0].metric if means else _NONE),
            )
        )
    columns = ("combination", "published", "source", "measured here, mean ± sd", "metric here")
    return Table(columns, rows)


def comparisons_table(comparisons: Sequence[Comparison], most: int = 60) -> Table:
    """Return the first ``most`` comparisons."""
    columns = ("one", "other", "one − other", "pairs", "test", "p", "p (Holm)")
    rows = [
        (
            Value(comparison.one),
            Value(comparison.other),
            Value(f"{comparison.difference:+.4f}".replace("-", "−"), comparison.difference),
            _number(comparison.n, "d"),
            Value(comparison.test),
            _number(comparison.p, ".2g"),
            _number(comparison.holm, ".2g"),
        )
        for comparison in comparisons[:most]
    ]
    return Table(columns, rows)


def schema_table() -> Table:
    """Return the meaning of the columns of table.csv and table.parquet."""
    more = {"axis.NAME": "label on an axis of the study", "metric.NAME": "a metric of the task"}
    return Table(
        ("column", "meaning"),
        [(Value(name), Value(meaning)) for name, meaning in (COLUMNS | more).items()],
    )


def _score(row: Any, seeds: bool = True) -> Value:
    if row is None:
        return Value(_NONE)
    spread = "" if isnan(row.deviation) else f" ± {row.deviation:.4f}"
    return Value(f"{row.mean:.4f}{spread}{f' ({row.n})' if seeds else ''}", row.mean)


def _number(value: Any, form: str = ".4f") -> Value:
    if value is None or isnan(value):
        return Value(_NONE)
    return Value(format(int(value) if form.endswith("d") else value, form), float(value))


def _size(value: float) -> Value:
    return Value(_NONE) if isnan(value) else Value(readable_bytes(value), float(value))
