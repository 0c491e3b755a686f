"""Choices that a user leaves open, made from task, backbone and method."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedpeft.backbones.sentences import made_to_read
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.methods import default_lr
from fedpeft.planning import (
    CODECS,
    HEAD_LR,
    RATES,
    STEEPNESS,
    choices_of,
    planned,
)
from fedpeft.runtime import Runtime
from fedpeft.starting import sizes
from fedpeft.updates.transfer import size_up
from simulations.api import settings_of

CODERS = ["wire.up=float32", "wire.up=eden8", "wire.up=eden1", "method.name=lora", "method.d=16"]


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
        rates = {"lr": None, "steepness": None}
        assert planned(experiment).head.model_copy(update=rates) == experiment.head


@pytest.mark.parametrize("why", ["head.start=random", "federation.strategy=fedmedian"])
def test_codecs_of_sums_that_are_not_sent_are_refused(why: str) -> None:
    with pytest.raises(UserError, match=r"head.moments = 'pca16': is for head.start = 'sums'"):
        planned(Experiment.load("", ["head.moments=pca16", why]))


def test_a_stored_experiment_without_the_settings_keeps_its_digest() -> None:
    before = Experiment.load("", ["seed=3"])
    assert before.head.start == "random"
    assert planned(Experiment.load("", ["seed=3"]), choices_of(before)).digest == before.digest
    again = planned(Experiment.load("", ["seed=3"]))
    assert planned(Experiment.load("", ["seed=3"]), choices_of(again)) == again


def test_minilm_reads_single_texts_as_its_makers_do() -> None:
    pairs = planned(Experiment.load("", ["backbone=minilm", "task.name=mrpc"]))
    assert (pairs.representation, pairs.task.pairs) == ("unit", "apart")
    single = planned(Experiment.load("", ["backbone=minilm", "task.name=sst2"]))
    assert (single.representation, single.task.pairs) == ("unit", "joint")
    for setting in ("representation=mean", "backbone=roberta-base", "backbone=tiny"):
        settings = ["backbone=minilm", "task.name=mrpc", "method.d=16", setting]
        kept = planned(Experiment.load("", settings))
        assert kept.task.pairs == "joint"
        assert kept.representation in ("mean", "mask")
    joint = planned(Experiment.load("", ["backbone=minilm", "task.name=mrpc", "task.pairs=joint"]))
    assert (joint.representation, joint.task.pairs) == ("unit", "joint")


@pytest.mark.parametrize(
    ("pooling", "steps", "expected"),
    [
        ("mean_tokens", ["Transformer", "Pooling", "Normalize"], "unit"),
        ("mean_tokens", ["Transformer", "Pooling"], "mean"),
        ("cls_token", ["Transformer", "Pooling", "Normalize"], "cls"),
        ("max_tokens", ["Transformer", "Pooling"], None),
        ("mean_tokens", ["Transformer", "Pooling", "Dense", "Normalize"], None),
        ("mean_tokens", ["Transformer"], None),
    ],
)
def test_a_folder_says_how_it_is_read(
    pooling: str, steps: list[str], expected: str | None, tmp_path: Path
) -> None:
    modules = [
        {"idx": place, "path": f"{place}_{step}" if place else "", "type": f"x.models.{step}"}
        for place, step in enumerate(steps)
    ]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    (tmp_path / "1_Pooling").mkdir()
    modes = {"pooling_mode_mean_tokens": False, f"pooling_mode_{pooling}": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(
        json.dumps({"word_embedding_dimension": 8, **modes})
    )
    assert made_to_read(str(tmp_path)) == expected
    (tmp_path / "modules.json").write_text("[")
    assert made_to_read(str(tmp_path)) is None


def test_choices_follow_when_a_printed_experiment_is_edited() -> None:
    """A file of `fedpeft config` has them as comments; a run's file has them as values."""
    chosen = planned(Experiment.load("", ["backbone=minilm", "task.name=mrpc"]))
    printed = chosen.to_toml(comments=True, derived=False)
    assert '# representation = "unit"' in printed and '# pairs = "apart"' in printed
    assert '# start = "sums"' in printed and '# moments = "pca' in printed
    edited = planned(
        Experiment.load(printed, ["backbone=roberta-base", "federation.strategy=krum"])
    )
    assert (edited.representation, edited.task.pairs, edited.head.start) == (
        "mask",
        "joint",
        "random",
    )
    stored = Experiment.load(chosen.to_toml())
    assert stored == planned(stored) == chosen
    assert stored.digest == chosen.digest


def test_a_head_from_sums_has_its_own_rates_and_starts_from_the_backbone_as_it_is() -> None:
    slash = planned(Experiment.load("", []))
    assert (slash.head.lr, slash.method.init) == (HEAD_LR["classes"], "zeros")  # type: ignore[attr-defined]
    for name in ("slash", "lora", "linear", "said"):
        chosen = planned(Experiment.load("", [f"method.name={name}"]))
        assert chosen.head.lr == HEAD_LR["classes"]
        assert chosen.local.lr == RATES.get(name, default_lr(name))
        assert chosen.head.steepness == STEEPNESS.get(name)
        assert "local.lr" in chosen.left_open()


def test_a_head_for_scores_has_its_own_rate() -> None:
    assert planned(Experiment.load("", ["task.name=stsb"])).head.lr == HEAD_LR["score"]


@pytest.mark.parametrize("settings", [["task.name=synthetic/entities"], ["task.kind=tags"]])
def test_a_head_for_tags_has_its_own_rate(settings: list[str], tmp_path: Path) -> None:
    if settings == ["task.kind=tags"]:
        table = tmp_path / "tags.jsonl"
        table.write_text(
            "".join(json.dumps({"text": ["a", "b"], "label": [tag, "O"]}) + "\n" for tag in "XY")
        )
        settings = [*settings, "task.name=custom", f"task.train={table}"]
    assert planned(Experiment.load("", settings)).head.lr == HEAD_LR["tags"]


@pytest.mark.parametrize(
    "settings",
    [
        ["head.start=random"],
        ["privacy.unit=example", "privacy.epsilon=3"],
        ["method.init=normal", "head.lr=0.1", "local.lr=0.02"],
        ["local.optimizer=sgd", "local.lr=0.5", "method.init=normal"],
        ["method.name=linear", "local.lr=0.5"],
        ["local.perturbations=4", "method.init=normal", "head.lr=0.1"],
    ],
)
def test_rates_and_initial_values_of_the_user_are_kept(settings: list[str]) -> None:
    before = Experiment.load("", settings)
    after = planned(before)
    assert after.method == before.method
    assert (after.head.lr, after.head.steepness) == (before.head.lr, None)
    assert after.local == before.local


@pytest.mark.parametrize(
    "setting",
    ["representation=mean", "local.lr=0.005", "task.pairs=joint", "method.init=normal"],
)
def test_a_setting_of_the_user_with_the_default_value_is_no_choice(setting: str) -> None:
    """Also after the experiment was printed, or given to `fedpeft.simulate`."""
    whole = Experiment.load("", ["task.name=mrpc", setting])
    for experiment in (whole, planned(whole)):
        again = Experiment.load(experiment.to_toml(comments=True, derived=False))
        assert again.left_open().keys() == whole.left_open().keys()
        assert planned(again) == planned(whole) == settings_of(experiment)


def test_choices_that_were_kept_stay_when_the_experiment_is_changed() -> None:
    """As those of an old run that is repeated with another seed."""
    old = Experiment.load("", [])
    kept = planned(Experiment.load("", []), choices_of(old))
    again = settings_of(kept, ["seed=1"])
    assert (again.head.start, again.local.lr, again.seed) == ("random", old.local.lr, 1)
    assert again.representation == old.representation
