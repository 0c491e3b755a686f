"""The progress of a study, read from its folder; as text and as JSON."""

from __future__ import annotations

from collections import Counter
from statistics import mean, stdev
from typing import Any

from simulations.study.cells import Cell
from simulations.study.execution import best_so_far
from simulations.study.file import SEED
from simulations.study.folder import Damaged, StudyFolder


def status_of(folder: StudyFolder) -> dict[str, Any]:
    """Return the states of trials and cells, scores, best settings, and failures.

    Scores are those of the last round, over finished cells that differ only in their seed.

    Raises:
        UserError: the folder's study.toml is not a valid study.
    """
    plan = folder.plan()
    best = best_so_far(folder, plan)
    cells = plan.cells(best)
    trials = [trial.cell for trial in plan.trials]
    lost = plan.size - len(cells)
    return {
        "study": str(folder.path),
        "trials": _counts(folder, trials),
        "cells": _counts(folder, cells) | ({"without settings": lost} if lost else {}),
        "best": [
            {
                "axes": dict(zip(plan.by, key, strict=True)),
                "score": chosen.score,
                "settings": chosen.values,
                "at the edge": list(chosen.edges),
                "trials without a score": chosen.failed,
            }
            for key, chosen in best.items()
        ],
        "scores": _scores(folder, cells),
        "failed": {
            cell.name: reason for cell in (*trials, *cells) if (reason := folder.failure(cell))
        },
    }


def printed(status: dict[str, Any]) -> str:
    """Return a status as text."""
    lines = [
        f"{name}: " + ", ".join(f"{count} {state}" for state, count in status[name].items())
        for name in ("trials", "cells")
        if status[name]
    ]
    for row in status["best"]:
        chosen = ", ".join(f"{key} = {value}" for key, value in row["settings"].items())
        edge = f" (the end of its grid: {', '.join(row['at the edge'])})"
        lost = row["trials without a score"]
        label = " · ".join(row["axes"].values()) or "all"
        lines.append(
            f"  best of {label}: {chosen}; {row['score']:.4f} on validation"
            + (edge if row["at the edge"] else "")
            + (f"; {lost} of its trials have no score" if lost else "")
        )
    lines += [
        f"  {row['cells']}: {row['metric']} {row['mean']:.4f}"
        + (f" ± {row['deviation']:.4f} over {row['runs']} seeds" if row["runs"] > 1 else "")
        for row in status["scores"]
    ]
    same: dict[str, list[str]] = {}
    for name, reason in status["failed"].items():
        same.setdefault(reason, []).append(name)
    lines += [
        f"  failed: {names[0] if len(names) == 1 else f'{len(names)} runs'}: {reason}"
        for reason, names in same.items()
    ]
    return "\n".join(lines)


def _counts(folder: StudyFolder, cells: list[Cell]) -> dict[str, int]:
    return dict(Counter(folder.state(cell) for cell in cells))


def _scores(folder: StudyFolder, cells: list[Cell]) -> list[dict[str, Any]]:
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        try:
            finished = folder.read(cell)
        except Damaged:
            continue
        if finished and finished.result["score"] is not None:
            labels = [label for axis, label in cell.labels.items() if axis != SEED]
            groups.setdefault(" · ".join(labels) or "all", []).append(finished.result)
    return [
        {
            "cells": label,
            "metric": results[0]["metric"],
            "mean": mean(scores),
            "deviation": stdev(scores) if len(scores) > 1 else 0.0,
            "runs": len(results),
        }
        for label, results in groups.items()
        for scores in [[result["score"] for result in results]]
    ]
