"""How far a study is, read off its folder; for people, and as JSON for programs."""

from __future__ import annotations

from collections import Counter
from statistics import mean, stdev
from typing import Any

from simulations.study.cells import Cell
from simulations.study.file import SEED
from simulations.study.folder import Damaged, StudyFolder
from simulations.study.running import found_best


def status_of(folder: StudyFolder) -> dict[str, Any]:
    """Return counts by state of trials and cells, scores, best settings and failures.

    Scores are of the last round, of all finished cells that differ in nothing but their seed.

    Raises:
        UserError: the folder's study.toml is no study.
    """
    plan = folder.plan()
    best = found_best(folder, plan)
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
                "score": found.score,
                "settings": found.values,
                "at the edge": list(found.edges),
                "trials without a score": found.failed,
            }
            for key, found in best.items()
        ],
        "scores": _scores(folder, cells),
        "failed": {
            cell.name: reason for cell in (*trials, *cells) if (reason := folder.failure(cell))
        },
    }


def printed(status: dict[str, Any]) -> str:
    """Return a status for people."""
    lines = [
        f"{name}: " + ", ".join(f"{count} {state}" for state, count in status[name].items())
        for name in ("trials", "cells")
        if status[name]
    ]
    for found in status["best"]:
        chosen = ", ".join(f"{key} = {value}" for key, value in found["settings"].items())
        edge = f" (the end of its grid: {', '.join(found['at the edge'])})"
        lost = found["trials without a score"]
        said = " · ".join(found["axes"].values()) or "all"
        lines.append(
            f"  best of {said}: {chosen}; {found['score']:.4f} on validation"
            + (edge if found["at the edge"] else "")
            + (f"; {lost} of its trials have no score" if lost else "")
        )
    lines += [
        f"  {each['cells']}: {each['metric']} {each['mean']:.4f}"
        + (f" ± {each['deviation']:.4f} over {each['runs']} seeds" if each["runs"] > 1 else "")
        for each in status["scores"]
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
    found: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        try:
            finished = folder.read(cell)
        except Damaged:
            continue
        if finished and finished.result["score"] is not None:
            labels = [label for axis, label in cell.labels.items() if axis != SEED]
            found.setdefault(" · ".join(labels) or "all", []).append(finished.result)
    return [
        {
            "cells": said,
            "metric": results[0]["metric"],
            "mean": mean(each["score"] for each in results),
            "deviation": stdev(each["score"] for each in results) if len(results) > 1 else 0.0,
            "runs": len(results),
        }
        for said, results in found.items()
    ]
