"""Tables and sentences of the benchmark of attacks, from made-up figures."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from simulations.benchmarks.parts.attack_grid import (
    BACKDOOR,
    CLIPPED,
    HONEST,
    MEAN,
    PARTITIONS,
    RULES,
    Cell,
    cells,
    tolerates,
)
from simulations.benchmarks.parts.attack_tables import (
    Runs,
    backdoors,
    draw_worst,
    sentences,
    worst,
    worst_rows,
)

BULYAN = "Bulyan"
#: Accuracy by rule and attack; seeds and partitions add a little.
SCORES = {
    (MEAN, HONEST): 0.90,
    (CLIPPED, HONEST): 0.90,
    (BULYAN, HONEST): 0.85,
    (MEAN, "scaling"): 0.50,
    (CLIPPED, "scaling"): 0.80,
    (BULYAN, "scaling"): 0.84,
    (MEAN, "mimic"): 0.88,
    (CLIPPED, "mimic"): 0.70,
    (BULYAN, "mimic"): 0.83,
}


@pytest.fixture
def runs() -> Runs:
    """Figures of three rules, two attacks by 5 or 8 clients, and backdoors."""
    found: dict[Cell, dict[str, Any]] = {}
    for place, (partition, seed) in enumerate(product(PARTITIONS, range(3))):
        for (rule, attack), score in SCORES.items():
            # Without an attack the difference of the two means has no direction.
            more = 0.001 * place * (1 if rule == MEAN else 2) - 0.004 * (rule != MEAN)
            for attackers in (5,) if attack == HONEST else (5, 8):
                if (rule, attackers) != (BULYAN, 8):
                    cell = Cell(rule, attack, attackers, partition, seed)
                    found[cell] = {"score": score + more}
        for rule in (MEAN, CLIPPED, BULYAN):
            cell = Cell(rule, BACKDOOR, 5, partition, seed)
            found[cell] = {"score": 0.9, "metrics": {"attack_success": 0.1 * seed}}
    return found


def test_the_worst_attack_has_the_lowest_mean(runs: Runs) -> None:
    found = worst(runs, MEAN, 5, "iid")
    assert found is not None
    assert found == (pytest.approx(0.501), "scaling")
    assert (worst(runs, CLIPPED, 5, "iid") or (0, ""))[1] == "mimic"
    assert worst(runs, BULYAN, 8, "iid") is None


def test_rows_mark_what_a_rule_cannot_tolerate_or_do(runs: Runs) -> None:
    rows = {(row["partition"], row["rule"]): row for row in worst_rows(runs)}
    assert len(rows) == 9
    assert rows["iid", MEAN]["20%"] == "50.1* scaling"
    assert rows["iid", BULYAN]["20%"].endswith(" mimic")
    assert rows["iid", BULYAN]["32%"] == "-"


def test_bulyan_needs_four_times_as_many_clients() -> None:
    assert tolerates(BULYAN, 5) and tolerates(BULYAN, 8) is None
    assert tolerates("multi-Krum", 10) and tolerates("median", 10)
    assert not any(tolerates(rule, 3) for rule in (MEAN, CLIPPED))


def test_sentences_say_which_rule_is_higher_and_that_some_do_not_differ(runs: Runs) -> None:
    scaling, honest, *more = sentences(runs)
    assert scaling.startswith(f"Under scaling by 20%, '{CLIPPED}' is 30.0 points higher than")
    assert f"'{CLIPPED}' and '{MEAN}' do not differ visibly" in honest
    assert len(more) == 3
    assert more[0].startswith(f"Under mimic by 20%, '{BULYAN}' is 13.0 points higher than")
    assert more[2].startswith(f"Without an attack, '{BULYAN}' is 5.0 points lower than '{MEAN}'")


def test_backdoors_have_a_row_per_partition_and_rule(runs: Runs) -> None:
    rows = backdoors(runs)
    assert len(rows) == 9
    assert rows[0] == {"partition": "iid", "rule": MEAN, "accuracy, %": 90.0, "success, %": 10.0}


def test_the_picture_is_an_svg(runs: Runs, tmp_path: Path) -> None:
    draw_worst(runs, tmp_path / "attacks.svg")
    assert (tmp_path / "attacks.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_cells_are_those_whose_rules_can_run() -> None:
    found = list(cells(list(RULES), ["scaling"], [5, 8], 1))
    assert len(found) == len(PARTITIONS) * (2 * len(RULES) - 1)
    assert len({cell.key for cell in found}) == len(found)
