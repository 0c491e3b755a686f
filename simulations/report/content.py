"""The content of a report, read once from the study's folder."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from fedpeft.errors import UserError
from server.runfolder import RESULT
from simulations.frozen import Line, lines_of
from simulations.spread import Spread, read_spread
from simulations.study.agreement import disagreements
from simulations.study.cells import Cell
from simulations.study.execution import best_so_far, finished_of
from simulations.study.file import SEED, StudyFile
from simulations.study.folder import STUDY, Damaged, StudyFolder
from simulations.study.search import Best
from simulations.study.table import Finished


@dataclass
class Content:
    """The content of a study's files."""

    study: StudyFile
    text: str  # of study.toml
    command: str  # the command that ran the study
    size: int  # planned cells
    seeds: int
    finished: list[tuple[Cell, Finished]]
    best: dict[str, Best]  # cell name -> best settings
    failed: dict[str, str] = field(default_factory=dict)  # cells and trials -> reason
    damaged: list[str] = field(default_factory=list)  # file and error
    disagreements: list[str] = field(default_factory=list)  # see ``simulations.study.agreement``
    partitions: dict[str, Spread] = field(default_factory=dict)  # title -> partition
    frozen: dict[str, list[Line]] = field(default_factory=dict)  # cell name -> frozen backbone
    newest: str = ""  # date of the newest result

    @property
    def title(self) -> str:
        """The study's title."""
        return self.study.title or "Study"

    @property
    def remarks(self) -> dict[str, int]:
        """Caveat of a score -> number of cells that it is about."""
        results = (finished.result for _, finished in self.finished)
        return dict(Counter(line for result in results for line in result.get("remarks", ())))

    @property
    def versions(self) -> dict[str, list[str]]:
        """Package -> versions that produced the results; normally one."""
        results = [finished.result["versions"] for _, finished in self.finished]
        programs = ("fedpeft", "torch", "transformers", "flwr")
        return {name: sorted({result.get(name, "?") for result in results}) for name in programs}

    @property
    def backbones(self) -> dict[str, list[str]]:
        """Backbone -> fingerprints in the results; normally one."""
        digests: dict[str, set[str]] = {}
        for _, finished in self.finished:
            result = finished.result
            digests.setdefault(result["backbone"], set()).add(result["digests"]["backbone"])
        return {name: sorted(values) for name, values in digests.items()}


def runs_of(path: Path) -> list[Path]:
    """Return the folders of the finished cells of a study; see ``content_of`` for errors."""
    folder = StudyFolder.open(path)
    plan = folder.plan()
    cells = plan.cells(best_so_far(folder, plan))
    return [folder.run_of(cell).path for cell, _ in finished_of(folder, cells)]


def content_of(folder: StudyFolder) -> Content:
    """Read a study's folder; list failed and damaged cells, skip unfinished ones.

    Raises:
        UserError: study.toml is not a valid study, or no cell has a result.
    """
    plan = folder.plan()
    best = best_so_far(folder, plan)
    cells = plan.cells(best)
    text = (folder.path / STUDY).read_text(encoding="utf-8")
    seeds = next((len(axis.choices) for axis in plan.axes if axis.name == SEED), 1)
    chosen = {cell.name: best[cell.key] for cell in cells if cell.key in best}
    content = Content(plan.study, text, folder.command(), plan.size, seeds, [], chosen)
    for trial in plan.trials:
        _read(folder, trial.cell, content)
    for cell in cells:
        if finished := _read(folder, cell, content):
            content.finished.append((cell, finished))
            content.frozen[cell.name] = lines_of(folder.run_of(cell).path)
    if not content.finished:
        wrong = f" ({'; '.join(content.damaged)})" if content.damaged else ""
        if content.failed:
            wrong += f", {len(content.failed)} runs failed: {next(iter(content.failed.values()))}"
        raise UserError(
            f"no results yet in '{folder.path}'{wrong}; run `fedpeft study run "
            f"{folder.path / STUDY} --out {folder.path} --resume`"
        )
    content.partitions.update(_partitions(folder, content.finished))
    content.disagreements = disagreements(folder, [cell for cell, _ in content.finished])
    content.newest = _newest(folder, content.finished)
    return content


def _read(folder: StudyFolder, cell: Cell, content: Content) -> Finished | None:
    """Return a cell's results; None, with the reason noted in ``content``, if it has none."""
    try:
        if finished := folder.read(cell):
            return finished
    except Damaged as error:
        content.damaged.append(str(error).replace(f"{folder.path}/", ""))
    else:
        if reason := folder.failure(cell):
            content.failed[cell.name] = reason
    return None


def _partitions(folder: StudyFolder, finished: list[tuple[Cell, Finished]]) -> dict[str, Spread]:
    """Return the distinct partitions of the first seed, by title."""
    first = finished[0][0].experiment.seed
    result: dict[str, Spread] = {}
    seen: set[str] = set()
    for cell, _ in finished:
        if cell.experiment.seed == first and (spread := read_spread(folder.run_of(cell).path)):
            title = _title(cell)
            digest = f"{title} {spread.digest}"
            if digest not in seen:
                same = sum(other == title or other.startswith(f"{title} (") for other in result)
                result[f"{title} ({same + 1})" if same else title] = spread
            seen.add(digest)
    return result


def _title(cell: Cell) -> str:
    partition, task = cell.experiment.partition, cell.experiment.task.name
    alpha = f" {partition.alpha:g}" if partition.kind in ("dirichlet", "quantity") else ""
    clients = cell.experiment.federation.clients
    label = cell.labels.get("task", task)
    return f"{label}: {partition.kind}{alpha}, {clients} clients"


def _newest(folder: StudyFolder, finished: list[tuple[Cell, Finished]]) -> str:
    newest = max((folder.run_of(cell).path / RESULT).stat().st_mtime for cell, _ in finished)
    return datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d")
