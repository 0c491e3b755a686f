"""What the report says of a study: read from its folder, once."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError
from server.runfolder import RESULT
from simulations.run import PARTITION
from simulations.study.agreement import disagreements
from simulations.study.cells import Cell
from simulations.study.file import SEED, StudyFile
from simulations.study.folder import STUDY, Damaged, StudyFolder
from simulations.study.running import found_best
from simulations.study.search import Best
from simulations.study.table import Finished

Found = tuple[Cell, Finished]


@dataclass(frozen=True)
class Spread:
    """How the training examples are spread over clients.

    Attributes:
        sizes: each client's number of examples.
        labels: names of the classes; none for scores.
        counts: how many of each class a client has, [clients][classes].
    """

    sizes: list[int]
    labels: list[str]
    counts: list[list[int]]


@dataclass
class Content:
    """A study's files, read."""

    study: StudyFile
    text: str  # of study.toml
    command: str  # that ran the study
    size: int  # cells that the study asks for
    seeds: int
    found: list[Found]
    best: dict[str, Best]  # by the name of a cell
    failed: dict[str, str] = field(default_factory=dict)  # cells and trials -> reason
    damaged: list[str] = field(default_factory=list)  # file and what is wrong with it
    disagreements: list[str] = field(default_factory=list)  # see ``simulations.study.agreement``
    partitions: dict[str, Spread] = field(default_factory=dict)  # by title
    newest: str = ""  # date of the newest result

    @property
    def title(self) -> str:
        """The study's title."""
        return self.study.title or "Study"

    @property
    def versions(self) -> dict[str, list[str]]:
        """Program -> its versions among the results; of a whole study one each."""
        programs = ("fedpeft", "torch", "transformers", "flwr")
        return {name: self._values("versions", name) for name in programs}

    @property
    def backbones(self) -> dict[str, list[str]]:
        """Backbone -> fingerprints of it among the results; of a whole study one."""
        found: dict[str, set[str]] = {}
        for _, finished in self.found:
            result = finished.result
            found.setdefault(result["backbone"], set()).add(result["digests"]["backbone"])
        return {name: sorted(values) for name, values in found.items()}

    def _values(self, section: str, name: str) -> list[str]:
        return sorted({finished.result[section].get(name, "?") for _, finished in self.found})


def content_of(folder: StudyFolder) -> Content:
    """Read a study's folder; what is not finished, failed or cannot be read is left out.

    Raises:
        UserError: study.toml is no study, or no cell of it has a result.
    """
    plan = folder.plan()
    best = found_best(folder, plan)
    cells = plan.cells(best)
    text = (folder.path / STUDY).read_text(encoding="utf-8")
    seeds = next((len(axis.choices) for axis in plan.axes if axis.name == SEED), 1)
    chosen = {cell.name: best[cell.key] for cell in cells if cell.key in best}
    content = Content(plan.study, text, folder.command(), plan.size, seeds, [], chosen)
    for trial in plan.trials:
        _read(folder, trial.cell, content)
    for cell in cells:
        if found := _read(folder, cell, content):
            content.found.append((cell, found))
    if not content.found:
        wrong = f" ({'; '.join(content.damaged)})" if content.damaged else ""
        if content.failed:
            wrong += f", {len(content.failed)} runs failed: {next(iter(content.failed.values()))}"
        raise UserError(
            f"no results yet in '{folder.path}'{wrong}; run `fedpeft study run "
            f"{folder.path / STUDY} --out {folder.path} --resume`"
        )
    content.partitions.update(_partitions(folder, content.found))
    content.disagreements = disagreements(folder, [cell for cell, _ in content.found])
    content.newest = _newest(folder, content.found)
    return content


def _read(folder: StudyFolder, cell: Cell, content: Content) -> Finished | None:
    """Return a cell's results; note why it has none."""
    try:
        if found := folder.read(cell):
            return found
    except Damaged as error:
        content.damaged.append(str(error).replace(f"{folder.path}/", ""))
    else:
        if reason := folder.failure(cell):
            content.failed[cell.name] = reason
    return None


def _partitions(folder: StudyFolder, found: list[Found]) -> dict[str, Spread]:
    """Return the different partitions of the first seed, by title."""
    first = found[0][0].experiment.seed
    result: dict[str, Spread] = {}
    seen: set[str] = set()
    for cell, _ in found:
        if cell.experiment.seed == first and (read := _partition(folder, cell)):
            digest, spread = read
            if digest not in seen:
                title = _title(cell)
                same = sum(each == title or each.startswith(f"{title} (") for each in result)
                result[f"{title} ({same + 1})" if same else title] = spread
            seen.add(digest)
    return result


def _partition(folder: StudyFolder, cell: Cell) -> tuple[str, Spread] | None:
    try:
        text = (folder.run_of(cell).path / PARTITION).read_text(encoding="utf-8")
        read: dict[str, Any] = json.loads(text)
        sizes = [len(rows) for rows in read["clients"]]
        # Runs of an earlier version have no counts.
        spread = Spread(sizes, read.get("labels", []), read.get("counts", []))
        return f"{_title(cell)} {read['digest']}", spread
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a picture less


def _title(cell: Cell) -> str:
    partition, task = cell.experiment.partition, cell.experiment.task.name
    alpha = f" {partition.alpha:g}" if partition.kind in ("dirichlet", "quantity") else ""
    clients = cell.experiment.federation.clients
    own = cell.labels.get("task", task)
    return f"{own}: {partition.kind}{alpha}, {clients} clients"


def _newest(folder: StudyFolder, found: list[Found]) -> str:
    paths: list[Path] = [folder.run_of(cell).path / RESULT for cell, _ in found]
    newest = max(path.stat().st_mtime for path in paths)
    return datetime.fromtimestamp(newest, UTC).strftime("%Y-%m-%d")
