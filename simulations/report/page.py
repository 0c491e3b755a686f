"""``fedpeft report``: a study's folder becomes report.html and a folder of figures."""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fedpeft.errors import UserError
from fedpeft.files import write_atomic
from simulations.report import figures, tables
from simulations.report.content import Content, content_of
from simulations.report.panel import Picture, settings
from simulations.report.significance import LEVEL, POOLED, Comparison, compare_all
from simulations.report.style import styles_of, variables
from simulations.report.summary import (
    PANEL,
    REACH,
    SENT,
    finals,
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
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Pictures:
    """A heading's figures, a picture for each task."""

    heading: str
    text: str
    pictures: list[Picture]


@dataclass(frozen=True)
class Family:
    """All comparisons on one task, or on all tasks together."""

    name: str
    comparisons: list[Comparison]
    table: tables.Table

    @property
    def outstanding(self) -> int:
        """How many differences stand out."""
        return sum(each.stands_out for each in self.comparisons)

    @property
    def pairs(self) -> str:
        """How many pairs each comparison has."""
        counts = sorted({each.n for each in self.comparisons})
        return f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def write_report(path: Path) -> tuple[Path, Content]:
    """Write a study's report from what is finished of it; its table is written anew as well.

    The same study gives the same bytes.

    Args:
        path: the study's folder.

    Returns:
        The page, and what it was made of.

    Raises:
        UserError: the folder holds no study, or no result.
    """
    folder = StudyFolder.open(path)
    content = content_of(folder)
    with suppress(UserError), folder.locked():  # a study that runs writes its table itself
        write_table(folder.path, content.found)
    frame = labelled(table_of(content.found))
    if frame["score"].isna().all():
        raise UserError(f"'{path}': none of its runs was evaluated, so there is no score to report")
    page = folder.path / PAGE
    write_atomic(page, _rendered(folder, content, frame))
    return page, content


def _rendered(folder: StudyFolder, content: Content, frame: pd.DataFrame) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    last = finals(frame)
    targets = targets_of(_with_tasks(last), content.study.report.targets)
    budgets = list(content.study.report.budgets) or round_budgets(frame)
    return environment.get_template("page.html").render(
        content=content,
        colours=variables(),
        styles=list(styles_of(frame).values()),
        panels=list(frame[PANEL].unique()),
        sections=_drawn(folder, content, frame),
        targets=tables.targets_table(frame, targets),
        targets_given=content.study.report.targets,
        reach=REACH,
        budgets=tables.budgets_table(frame, budgets),
        budgets_given=content.study.report.budgets,
        results=tables.results_table(frame, content),
        published=tables.published_table(frame, content),
        families=_families(last),
        level=LEVEL,
        schema=tables.schema_table(),
        digests={
            name: _digest(folder.path / name)
            for name in ("study.toml", CSV, PARQUET)
            if (folder.path / name).exists()
        },
    )


def _drawn(folder: StudyFolder, content: Content, frame: pd.DataFrame) -> dict[str, Pictures]:
    """Draw everything; return name -> pictures."""
    styles, to = styles_of(frame), folder.path / FIGURES
    to.mkdir(exist_ok=True)
    with settings():
        return {
            "scores": Pictures(
                "Score against bytes",
                "The last score of each series: mean over seeds, bars of one standard deviation. "
                "No other series is both cheaper and better than one on the dashed line "
                "(the Pareto front of the means).",
                figures.draw_scores(to, frame, styles),
            ),
            "rounds": Pictures(
                "Convergence, by rounds",
                "Mean over seeds; the band is one standard deviation.",
                figures.draw_curves(to, frame, styles, "round"),
            ),
            "bytes": Pictures(
                "Convergence, by bytes",
                "The same curves against what a client had sent up by then.",
                figures.draw_curves(to, frame, styles, SENT),
            ),
            "epsilon": Pictures(
                "Score against privacy",
                "Target epsilon of each run, or what it spent where its noise was given; smaller "
                "is more private. Each run stands alone: what several spend on the same examples, "
                "and what the trials of a search spend, adds up.",
                figures.draw_epsilon(to, frame, styles),
            ),
            "partitions": Pictures(
                "Who has how much",
                "Training examples of each client, with the study's first seed.",
                figures.draw_partitions(to, content.partitions),
            ),
        }


def _families(last: pd.DataFrame) -> list[Family]:
    panels = list(last[PANEL].unique())
    found = []
    for name in ([POOLED] if len(panels) > 1 else []) + panels:
        if comparisons := compare_all(last, name):
            found.append(Family(name, comparisons, tables.comparisons_table(comparisons)))
    return found


def _with_tasks(last: pd.DataFrame) -> pd.DataFrame:
    """Return the final means with the name of each panel's task."""
    return over_seeds(last).merge(last.drop_duplicates(PANEL)[[PANEL, "task"]], on=PANEL)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
