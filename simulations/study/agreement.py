"""Check that the runs of a study read the same data and weights: files may change meanwhile.

Each run keeps digests of what it read (``identity.json``) and refuses to resume with others. Only
this module compares different runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedpeft.errors import UserError
from simulations.study.cells import Cell
from simulations.study.folder import StudyFolder

_SAME = {"data": "examples", "backbone": "weights"}  # key of identity.json -> content


def disagreements(folder: StudyFolder, cells: Sequence[Cell]) -> list[str]:
    """Return a line for each task or backbone that has different contents in different runs.

    A run whose identity.json is damaged has a line, too.
    """
    groups: dict[tuple[str, ...], dict[str, list[str]]] = {}
    lines = []
    for cell in cells:
        try:
            identity = folder.run_of(cell).pinned()
        except UserError as error:
            lines.append(str(error).partition("; start again")[0])
            continue
        for key in _SAME.keys() & identity.keys():
            runs = groups.setdefault(_settings(cell, key), {})
            runs.setdefault(identity[key], []).append(cell.name)
    return [*lines, *(_line(group, runs) for group, runs in groups.items() if len(runs) > 1)]


def _settings(cell: Cell, key: str) -> tuple[str, ...]:
    """Return the settings that determine what a run reads."""
    experiment = cell.experiment
    if key == "backbone":
        return key, experiment.backbone
    task = experiment.task.model_dump_json()
    name = cell.labels.get("task", experiment.task.name)
    read = experiment.backbone, str(experiment.representation), str(experiment.seed), task
    return key, f"{name} with seed {experiment.seed}", *read


def _line(group: tuple[str, ...], runs: dict[str, list[str]]) -> str:
    several = "; ".join(f"{names[0]}{_more(names)}" for names in runs.values())
    return (
        f"{group[1]}: the {_SAME[group[0]]} changed between runs, so they do not compare: {several}"
    )


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - 1} more" if len(names) > 1 else ""
