"""Tables, sentences and the picture of the benchmark of attacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from simulations.benchmarks.common import Row
from simulations.benchmarks.parts.attack_grid import (
    ATTACKS,
    BACKDOOR,
    CLIENTS,
    CLIPPED,
    HONEST,
    MEAN,
    PARTITIONS,
    USUAL,
    Cell,
    tolerates,
)
from simulations.report.panel import settings as plot_settings
from simulations.report.significance import tested

Runs = Mapping[Cell, Mapping[str, Any]]
LEVEL = 0.05 / 5  # of each of the five sentences (Bonferroni)
_ENDS = 0.3, 0.95  # accuracies of the ends of the color scale; 0.5 is chance


def worst(runs: Runs, rule: str, attackers: int, partition: str) -> tuple[float, str] | None:
    """Return the lowest mean accuracy over attacks and the attack; None if the rule cannot run."""
    scores: dict[str, list[float]] = {}
    for cell, figures in runs.items():
        if (cell.rule, cell.attackers, cell.partition) == (rule, attackers, partition):
            scores.setdefault(cell.attack, []).append(figures["score"])
    found = [(mean(scores[attack]), attack) for attack in ATTACKS if attack in scores]
    return min(found) if found else None


def worst_rows(runs: Runs) -> list[Row]:
    """Return a row per partition and rule: accuracy without attackers, and the worst ones."""
    rows = []
    for partition in PARTITIONS:
        for rule in rules_of(runs):
            row: Row = {"partition": partition, "rule": rule}
            row["no attack"] = f"{100 * mean(scores_of(runs, rule, HONEST, None, partition)):.1f}"
            for attackers in numbers_of(runs):
                found = worst(runs, rule, attackers, partition)
                mark = "" if tolerates(rule, attackers) else "*"
                text = f"{100 * found[0]:.1f}{mark} {found[1]}" if found else "-"
                row[f"{attackers / CLIENTS:.0%}"] = text
            rows.append(row)
    return rows


def backdoors(runs: Runs) -> list[Row]:
    """Return a row per partition and rule: accuracy and success of the backdoor."""
    rows = []
    for partition in PARTITIONS:
        for rule in rules_of(runs):
            found = [
                figures
                for cell, figures in runs.items()
                if (cell.rule, cell.attack, cell.partition) == (rule, BACKDOOR, partition)
            ]
            rows.append(
                {
                    "partition": partition,
                    "rule": rule,
                    "accuracy, %": round(100 * mean(each["score"] for each in found), 1),
                    "success, %": round(100 * mean(map(success, found)), 1),
                }
            )
    return rows


def success(figures: Mapping[str, Any]) -> float:
    """Return the share of texts of other classes that the backdoor's trigger turns."""
    return float(figures["metrics"]["attack_success"])


def rules_of(runs: Runs) -> list[str]:
    """Return the rules of the runs in order."""
    return list(dict.fromkeys(cell.rule for cell in runs if cell.attack == HONEST))


def numbers_of(runs: Runs) -> list[int]:
    """Return the numbers of attackers, rising."""
    return sorted({cell.attackers for cell in runs if cell.attack in ATTACKS})


def scores_of(
    runs: Runs, rule: str, attack: str, attackers: int | None, partition: str | None
) -> list[float]:
    """Return the accuracies of some runs, by partition and seed; None stands for any."""
    chosen = {
        (cell.partition, cell.seed): figures["score"]
        for cell, figures in runs.items()
        if (cell.rule, cell.attack) == (rule, attack)
        and attackers in (None, cell.attackers)
        and partition in (None, cell.partition)
    }
    return [chosen[key] for key in sorted(chosen)]


def sentences(runs: Runs) -> list[str]:
    """Return what the runs say of the rules, each with a paired test over partitions and seeds."""
    numbers = numbers_of(runs)
    few = USUAL if USUAL in numbers else numbers[0]
    rules = [rule for rule in rules_of(runs) if tolerates(rule, few)]
    said = [
        _compared(runs, CLIPPED, MEAN, "scaling", few),
        _compared(runs, CLIPPED, MEAN, HONEST, None),
    ]
    if rules:
        best = max(rules, key=lambda rule: _least(runs, rule, few))
        said += [_compared(runs, best, CLIPPED, attack, few) for attack in _hardest(runs, few)]
        said.append(_compared(runs, best, MEAN, HONEST, None))
    return said


def _least(runs: Runs, rule: str, attackers: int) -> float:
    """Return a rule's mean over partitions of the worst accuracy."""
    found = [worst(runs, rule, attackers, partition) for partition in PARTITIONS]
    return mean(each[0] for each in found if each)


def _hardest(runs: Runs, attackers: int) -> list[str]:
    """Return the two attacks that lower the clipped mean most."""
    attacks = {cell.attack for cell in runs if cell.attack in ATTACKS}
    scores = {each: scores_of(runs, CLIPPED, each, attackers, None) for each in attacks}
    known = [each for each in sorted(attacks) if scores[each]]
    return sorted(known, key=lambda each: mean(scores[each]))[:2]


def _compared(runs: Runs, one: str, other: str, attack: str, attackers: int | None) -> str:
    """Return a sentence on the difference of two rules, with the test's p."""
    first, second = (scores_of(runs, rule, attack, attackers, None) for rule in (one, other))
    where = "Without an attack" if attack == HONEST else f"Under {attack}"
    if attackers:
        where += f" by {attackers / CLIENTS:.0%}"
    if not first or len(first) != len(second):
        return f"{where}, '{one}' and '{other}' were not compared."
    differences = np.subtract(first, second)
    name, p = tested(differences)
    by = 100 * float(differences.mean())
    scores = f"({100 * mean(first):.1f} and {100 * mean(second):.1f} %"
    how = f"{name}, p = {p:.2g}, {len(first)} pairs)" if p is not None else "not tested)"
    if p is None or p >= LEVEL:
        return f"{where}, '{one}' and '{other}' do not differ visibly {scores}; {how}."
    more = "higher" if by > 0 else "lower"
    return f"{where}, '{one}' is {abs(by):.1f} points {more} than '{other}' {scores}; {how}."


def draw_worst(runs: Runs, path: Path) -> None:
    """Draw the worst accuracies as a heat map for each partition."""
    import matplotlib.pyplot as plt

    rules, numbers = rules_of(runs), numbers_of(runs)
    with plot_settings():
        figure, axes = plt.subplots(
            1, len(PARTITIONS), figsize=(9.5, 3.6), layout="constrained", sharey=True
        )
        for axis, partition in zip(axes, PARTITIONS, strict=True):
            values = np.full((len(rules), len(numbers)), np.nan)
            for row, rule in enumerate(rules):
                for column, attackers in enumerate(numbers):
                    found = worst(runs, rule, attackers, partition)
                    if found:
                        values[row, column] = found[0]
                        mark = "" if tolerates(rule, attackers) else "*"
                        text, dark = f"{100 * found[0]:.0f}{mark}", found[0] < sum(_ENDS) / 2
                        color = "white" if dark else "black"
                        axis.text(column, row, text, ha="center", va="center", color=color)
            axis.imshow(values, vmin=_ENDS[0], vmax=_ENDS[1], cmap="cividis", aspect="auto")
            axis.grid(False)
            axis.set_title(partition)
            axis.set_xticks(range(len(numbers)), [f"{n / CLIENTS:.0%}" for n in numbers])
            axis.set_yticks(range(len(rules)), rules)
            axis.set_xlabel("malicious clients")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
