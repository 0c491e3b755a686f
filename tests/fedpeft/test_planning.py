"""Choices that a user leaves open, made from task, backbone and method."""

from __future__ import annotations

import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.planning import CODECS, planned
from fedpeft.runtime import Runtime
from fedpeft.starting import sizes
from fedpeft.transfer import size_up

CODERS = ["wire.up=float32", "wire.up=eden8", "wire.up=eden1", "method.name=lora", "method.d=16"]
LEGACY = {"start": "random", "lr": None}


@pytest.mark.parametrize("setting", CODERS)
@pytest.mark.parametrize("backbone", ["minilm", "roberta-base"])
def test_the_start_is_the_best_that_costs_two_rounds_at_most(backbone: str, setting: str) -> None:
    experiment = planned(Experiment.load("", [f"backbone={backbone}", setting]))
    head, most = experiment.head, 2 * size_up(Runtime(experiment))
    assert head.start == "sums"
    place = CODECS.index((head.sums, head.moments))
    assert sum(sizes(Runtime(experiment))) <= most
    if place:
        sums, moments = CODECS[place - 1]
        better = Experiment.load(
            experiment.to_toml(), [f"head.sums={sums}", f"head.moments={moments}"]
        )
        assert sum(sizes(Runtime(better))) > most


@pytest.mark.parametrize(
    "setting",
    [
        ["privacy.unit=example", "privacy.epsilon=3"],
        ["federation.secure=true"],
        ["federation.strategy=fedmedian"],
        ["federation.mode=async", "devices.step_seconds=1", "federation.buffer=2"],
        ["federation.personal=head", "federation.evaluation=clients"],
        ["adversary.fraction=0.2", "adversary.attack=label_flip"],
    ],
)
def test_where_clients_send_no_sums_heads_start_at_random(setting: list[str]) -> None:
    assert planned(Experiment.load("", setting)).head.start == "random"


def test_what_the_user_sets_is_kept() -> None:
    for settings in (["head.start=random"], ["head.start=sums", "head.moments=none"]):
        experiment = Experiment.load("", settings)
        assert planned(experiment) == experiment


def test_a_stored_experiment_without_the_settings_keeps_its_digest() -> None:
    before = Experiment.load("", ["seed=3"])
    assert before.head.start == "random"
    assert planned(Experiment.load("", ["seed=3"]), before).digest == before.digest
    again = planned(Experiment.load("", ["seed=3"]))
    assert planned(Experiment.load("", ["seed=3"]), again) == again
