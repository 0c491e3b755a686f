"""Write the report of a study: report.html and a folder of figures (``fedpeft report``)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from fedpeft.page.render import TABLES, environment
from fedpeft.page.render import frame as page_frame
from simulations.plots import isolated
from simulations.report import figures, tables
from simulations.report.content import Content, content_of
from simulations.report.panel import Picture, settings
from simulations.report.significance import LEVEL, POOLED, Comparison, compare_all
from simulations.report.style import styles_of
from simulations.report.summary import (
    PANEL,
    REACH,
    SENT,
    finals,
    frozen_means,
    frozen_scores,
    labelled,
    over_seeds,
    round_budgets,
    targets_of,
)
from simulations.study.folder import StudyFolder
from simulations.study.table import CSV, PARQUET, table_of, write_table

if TYPE_CHECKING:
    import pandas as pd

PAGE, FIGURES = "report.html", "figures"
FROZEN = "frozen.csv"  # scores of the frozen backbone, by cell
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pictures:
    """The figures below one heading, one picture per task."""

    heading: str
    text: str
    pictures: list[Picture]


@dataclass(frozen=True)
class Family:
    """All comparisons on one task, or on all tasks together."""

    name: str
    comparisons: list[Comparison]

    @property
    def significant(self) -> list[Comparison]:
        """The significant differences."""
        return [comparison for comparison in self.comparisons if comparison.stands_out]

    @property
    def others(self) -> list[Comparison]:
        """The other differences."""
        return [comparison for comparison in self.comparisons if not comparison.stands_out]

    @property
    def pairs(self) -> str:
        """Number of pairs of the comparisons: one number or a range."""
        counts = sorted({comparison.n for comparison in self.comparisons})
        return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def write_report(path: Path) -> tuple[Path, Content]:
    """Write the report of a study from its finished cells, and rewrite its table.

    The same study gives the same bytes.

    Args:
        path: the study's folder.

    Returns:
        The path of the page, and its content.

    Raises:
        UserError: the folder holds no study, no result, or no score.
    """
    folder = StudyFolder.open(path)
    content = content_of(folder)
    with suppress(UserError), folder.locked():  # a running study writes its own table
        write_table(folder.path, content.finished)
    frame = labelled(table_of(content.finished))
    if frame["score"].isna().all():
        raise UserError(f"'{path}': none of its runs was evaluated, so there is no score to report")
    page = folder.path / PAGE
    write_atomic(page, _rendered(folder, content, frame))
    if any(content.frozen.values()):
        write_atomic(folder.path / FROZEN, frozen_scores(content.frozen).to_csv(index=False))
    return page, content


def _rendered(folder: StudyFolder, content: Content, frame: pd.DataFrame) -> str:
    last = finals(frame)
    targets = targets_of(_with_tasks(last), content.study.report.targets)
    frozen = frozen_means(frame, frozen_scores(content.frozen))
    budgets = list(content.study.report.budgets) or round_budgets(frame)
    return (
        environment(_HERE)
        .get_template("page.html")
        .render(
            content=content,
            **page_frame(TABLES),
            styles=list(styles_of(frame).values()),
            sections=_drawn(folder, content, frame, _levels(frozen)),
            frozen=tables.frozen_table(frozen),
            targets=tables.targets_table(frame, targets),
            targets_given=content.study.report.targets,
            reach=REACH,
            budgets=tables.budgets_table(frame, budgets),
            budgets_given=content.study.report.budgets,
            results=tables.results_table(frame, content),
            published=tables.published_table(frame, content),
            families=families_of(last),
            comparisons_table=tables.comparisons_table,
            level=LEVEL,
            schema=tables.schema_table(),
            digests={
                name: hashlib.sha256((folder.path / name).read_bytes()).hexdigest()
                for name in ("study.toml", CSV, PARQUET)
                if (folder.path / name).exists()
            },
        )
    )


def _levels(frozen: pd.DataFrame) -> dict[str, float]:
    """Return the best score of the frozen backbone of each panel that has one backbone."""
    panels = frozen.groupby(PANEL, sort=False)
    return {
        str(panel): float(rows["score"].max())
        for panel, rows in panels
        if rows["backbone"].nunique() == 1
    }


def _pictures(title: str, text: str, draw: Callable[[], list[Picture]]) -> Pictures:
    """Return a section with its pictures; without them if they fail, see ``plots.isolated``."""
    pictures: list[Picture] = []
    with isolated(title):
        pictures = draw()
    return Pictures(title, text, pictures)


def _drawn(
    folder: StudyFolder, content: Content, frame: pd.DataFrame, levels: dict[str, float]
) -> dict[str, Pictures]:
    """Draw all figures; return section -> pictures."""
    styles, target = styles_of(frame), folder.path / FIGURES
    target.mkdir(exist_ok=True)
    with settings():
        return {
            "scores": _pictures(
                "Score against bytes",
                "Last score of each series: mean over seeds; error bars show one standard "
                "deviation. Dashed: the Pareto front of the means. Dotted: the frozen backbone "
                "with all data in one place.",
                lambda: figures.draw_scores(target, frame, styles, levels),
            ),
            "rounds": _pictures(
                "Convergence, by rounds",
                "Mean over seeds; the band is one standard deviation. Dotted: the frozen backbone "
                "with all data in one place.",
                lambda: figures.draw_curves(target, frame, styles, "round", levels),
            ),
            "bytes": _pictures(
                "Convergence, by bytes",
                "The same curves against the payload a client has sent up so far.",
                lambda: figures.draw_curves(target, frame, styles, SENT, levels),
            ),
            "epsilon": _pictures(
                "Score against privacy",
                "Target epsilon of each run, or the epsilon spent by runs with a given noise; "
                "smaller is more private. Epsilon counts one run: the losses of several runs on "
                "the same examples, including trials of a search, add up.",
                lambda: figures.draw_epsilon(target, frame, styles),
            ),
            "partitions": _pictures(
                "Data of each client",
                "Training examples of each client, for the first seed of the study.",
                lambda: figures.draw_partitions(target, content.partitions),
            ),
        }


def families_of(last: pd.DataFrame) -> list[Family]:
    """Return the comparisons of all tasks together, if there are several, and of each.

    Args:
        last: one row per cell, see ``summary.finals``.
    """
    panels = list(last[PANEL].unique())
    families = []
    for name in ([POOLED] if len(panels) > 1 else []) + panels:
        if comparisons := compare_all(last, name):
            families.append(Family(name, comparisons))
    return families


def _with_tasks(last: pd.DataFrame) -> pd.DataFrame:
    """Return the final means with the name of each panel's task."""
    return over_seeds(last).merge(last.drop_duplicates(PANEL)[[PANEL, "task"]], on=PANEL)
