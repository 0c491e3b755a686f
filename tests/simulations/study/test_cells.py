"""Cells: the product of the axes, each an experiment with a name of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.planning import planned
from simulations.study.cells import Cell
from simulations.study.file import parse
from simulations.study.plan import Plan

Cells = Callable[[str], list[Cell]]


def cells_of(text: str) -> list[Cell]:
    return Plan(parse(text)).cells({})


def test_cells_are_all_combinations_with_the_seeds_outermost() -> None:
    cells = cells_of(
        '[base]\nbackbone = "tiny"\nmethod.name = "slash"\n'
        "[axes]\nmethod.d = [4, 8]\nseed = [0, 1]\nlocal.lr = [0.1, 0.2]"
    )
    found = [(c.experiment.seed, c.experiment.method.d, c.experiment.local.lr) for c in cells]
    assert found == [(s, d, lr) for s in (0, 1) for d in (4, 8) for lr in (0.1, 0.2)]
    assert cells[0].labels == {"seed": "0", "method.d": "4", "local.lr": "0.1"}


def test_a_cell_is_the_experiment_that_its_settings_alone_would_be() -> None:
    (cell,) = cells_of(
        '[base]\nbackbone = "tiny"\nmethod = { name = "slash", d = 9 }\n'
        '[axes]\nkind = [{ label = "L", method.name = "lora", method.rank = 3, seed = 2 }]'
    )
    # Another method, so what was set for the base's is no setting of it.
    settings = ["backbone=tiny", "method.name=lora", "method.rank=3", "seed=2", "engine.threads=1"]
    alone = planned(Experiment.load("", settings))
    assert cell.experiment == alone
    assert cell.labels == {"kind": "L"}
    assert cell.name == f"l-{alone.digest[:8]}"


def test_a_list_of_cells_is_an_axis_and_may_have_several_labels() -> None:
    cells = cells_of(
        "[axes]\nseed = [0, 1]\n"
        '[[cells]]\nlabel = { task = "A", method = "M" }\nlocal.lr = 0.1\n'
        '[[cells]]\nlabel = { task = "A", method = "N" }\nlocal.lr = 0.2\n'
    )
    assert [cell.labels for cell in cells] == [
        {"seed": seed, "task": "A", "method": method} for seed in "01" for method in "MN"
    ]


def test_without_a_label_a_choice_is_called_by_its_values() -> None:
    (cell,) = cells_of(
        '[axes]\nkind = [{ federation.personal = ["head"], seed = 3, '
        'federation.evaluation = "clients" }]'
    )
    assert cell.labels == {"kind": "head clients 3"}


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        (
            "local.rate = [1, 2]",
            "cell with local.rate '1': unknown key 'local.rate'; valid: ",
        ),
        ('method.name = ["lora"]\nlocal.lr = [-1]', "cell with method.name 'lora', local.lr '-1'"),
        ("seed.x = [1]", "cell with seed.x '1': seed"),
        (
            "federation.per_round = [20]",
            "cell with federation.per_round '20': federation.per_round",
        ),
    ],
)
def test_a_wrong_cell_is_named_by_its_labels(axes: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        cells_of(f"[axes]\n{axes}")
    assert str(caught.value).startswith(said)


def test_two_cells_with_the_same_settings_are_refused() -> None:
    with pytest.raises(UserError, match="two cells with the same settings: 'a' and 'b'"):
        cells_of('[axes]\nx = [{ label = "a", seed = 1 }, { label = "b", seed = 1 }]')


def test_names_are_safe_for_a_file_system() -> None:
    (cell,) = cells_of('[axes]\nx = [{ label = "../Über/α = 1; rm *", seed = 1 }]')
    assert cell.name.replace(cell.experiment.digest[:8], "") == "ber-1-rm-"
    (long,) = cells_of(f'[axes]\nx = [{{ label = "{"y" * 300}", seed = 1 }}]')
    assert len(long.name) < 100


def test_a_key_set_by_an_axis_cannot_be_overridden() -> None:
    study = parse("[axes]\nlocal.lr = [0.1]\nm = [{ label = 'a', seed = 1 }, { method.d = 4 }]")
    with pytest.raises(UserError, match=r"^-s local\.lr: the study's axis 'local\.lr' sets it"):
        Plan(study, ("local.lr=0.3",))
    seeds = [cell.experiment.seed for cell in Plan(study, ("seed=5",)).cells({})]
    assert seeds == [1, 5]
