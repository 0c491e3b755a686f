"""The tables' studies train as many numbers as the paper says; counted without weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fedpeft.backbones.known import KNOWN_SHAPES
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.experiment.config import Experiment
from fedpeft.heads import Full, Head
from fedpeft.methods import build_method
from fedpeft.parameters import layout_of
from fedpeft.tasks import described
from simulations.study.cells import base_of, cell_of, combinations
from simulations.study.choices import Choices
from simulations.study.file import StudyFile
from simulations.study.plan import Plan

#: counts.json's names under ours; its ``hf_head`` is a bias of Hugging Face's head, not ours.
OURS = {"warp": "prompt"}
ARGUMENTS = {"r": "rank", "m": "bottleneck", "n": "length", "d": "d"}
TABLES = {"T2": "table2", "T3": "table3", "T4": "table4"}


def experiments(study: StudyFile) -> Iterator[Experiment]:
    """Every cell of three or nine classes, a search's values left out."""
    base = base_of(study, ())
    for chosen in combinations(Plan(study).axes):
        found = cell_of(base, chosen, choices=Choices(chooses=False)).experiment
        if found.task.name in ("mnli", "conll2003"):
            yield found


def numbers(experiment: Experiment) -> int:
    info, shape = described(experiment.task), KNOWN_SHAPES[experiment.backbone]
    assert info
    method = build_method(experiment.method, shape, experiment.seed)
    return layout_of(method, Head(info.kind, Full(info.classes, shape.width))).size


def setting(experiment: Experiment, key: str, shape: BackboneShape) -> Any:
    """A method's setting; "max" as the number it stands for."""
    value = getattr(experiment.method, key)
    return shape.layers * shape.width if value == "max" else value


def test_numbers_trained_are_those_of_the_papers_tables(
    study: Callable[..., StudyFile], reference: Callable[[str], dict[str, Any]]
) -> None:
    rows = [row for row in reference("counts.json")["rows"] if row["table"] in TABLES]
    all_of = {table: list(experiments(study(name))) for table, name in TABLES.items()}
    counted = set()
    for row in rows:
        shape = KNOWN_SHAPES[row["model"]]
        arguments = {ARGUMENTS[key]: each for key, each in row["args"].items() if key in ARGUMENTS}
        found = [
            each
            for each in all_of[row["table"]]
            if each.method.name == OURS.get(row["method"], row["method"])
            and all(setting(each, key, shape) == value for key, value in arguments.items())
        ]
        assert found, row
        for each in found:
            counted.add(each.digest)
            dense_bias = shape.width if row["args"].get("hf_head") else 0
            head = 0 if row["C"] else 3 * (shape.width + 1)  # some rows leave it out
            assert each.backbone == row["model"]
            assert numbers(each) + dense_bias - head == row["built"], row
    rest = {
        each.method.name
        for cells in all_of.values()
        for each in cells
        if each.digest not in counted
    }
    assert rest == {"full"}  # of which the table has no row
