"""Suggestions for misspelled names."""

from __future__ import annotations

import pytest

from fedpeft.errors import nearest, suggestion
from fedpeft.experiment.config import Experiment
from fedpeft.methods import REGISTRY
from fedpeft.tasks import available_tasks


def keys_beside(key: str) -> list[str]:
    """Return the full names of the settings in the section of a key."""
    section, dot, _ = key.rpartition(".")
    owner = type(getattr(Experiment(), section)) if dot else Experiment
    return [f"{section}{dot}{name}" for name in owner.model_fields]


@pytest.mark.parametrize(
    ("typo", "key"),
    [
        ("sed", "seed"),
        ("Seed", "seed"),
        ("engin", "engine"),
        ("federaton", "federation"),
        ("local.lrr", "local.lr"),
        ("local.epoch", "local.epochs"),
        ("local.optimiser", "local.optimizer"),
        ("local.batchsize", "local.batch_size"),
        ("federation.client", "federation.clients"),
        ("federation.round", "federation.rounds"),
        ("privacy.epsilonn", "privacy.epsilon"),
        ("engine.type", "engine.dtype"),
        ("output.plot", "output.plots"),
    ],
)
def test_a_misspelled_setting_suggests_the_setting(typo: str, key: str) -> None:
    assert suggestion(typo, keys_beside(typo)) == f"; did you mean '{key}'?"


@pytest.mark.parametrize(
    "unknown",
    [
        "model",
        "precision",
        "threads",
        "local.rate",
        "local.test",
        "local.num_rounds",
        "federation.rate",
        "federation.train",
        "engine.dataset",
        "engine.head",
        "privacy.model",
        "privacy.data",
        "output.task",
        "task.rank",
        "task.fraction",
    ],
)
def test_an_unrelated_setting_suggests_nothing(unknown: str) -> None:
    assert suggestion(unknown, keys_beside(unknown)) == ""


def test_without_a_close_name_all_valid_names_are_listed() -> None:
    assert nearest("local.rate", ["local.lr", "local.epochs"]) == "; valid: local.epochs, local.lr"


@pytest.mark.parametrize(
    ("typo", "name"), [("lra", "lora"), ("slsh", "slash"), ("sst3", "sst2"), ("qnly", "qnli")]
)
def test_misspelled_methods_and_tasks_suggest_the_name(typo: str, name: str) -> None:
    names = [*REGISTRY, *(info.name for info in available_tasks())]
    assert suggestion(typo, names) == f"; did you mean '{name}'?"
