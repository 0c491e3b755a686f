"""A run is told before it trains what its export would say after it."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from finished import made_up, method, small
from models import METHODS, SMALL

from fedpeft.errors import UserError
from fedpeft.export import Format
from fedpeft.export.obstacles import check_exportable, unexportable
from fedpeft.trained import Trained


@pytest.mark.parametrize(
    "settings",
    [
        *([*method(name, SMALL[name])] for name in METHODS),
        ["method.name=lora", "engine.weights=int8"],
        [
            "task.name=synthetic/inference",
            "task.pairs=apart",
            "representation=mean",
            *method("linear", {}),
        ],
        ["task.name=synthetic/entities", "method.name=lora"],
    ],
    ids=lambda settings: " ".join(settings[:2]),
)
def test_what_is_said_first_is_what_an_export_says(settings: list[str], tmp_path: Path) -> None:
    experiment = small(*settings)
    trained = Trained.read(made_up(tmp_path / "vector", experiment))
    refused = []
    for kind in get_args(Format):
        try:
            check_exportable(trained, kind)
        except UserError:
            refused.append(kind)
    expected = f"no export to {', '.join(refused)}" if refused else ""
    assert unexportable(experiment) == expected


def test_a_backbone_that_is_elsewhere_is_not_looked_up() -> None:
    assert unexportable(small("backbone=/nowhere/else")) == ""


def test_formats_are_named_in_their_order() -> None:
    experiment = small("representation=mean", *method("houlsby", SMALL["houlsby"]))
    assert unexportable(experiment) == "no export to hf, peft, sentence-transformers"
