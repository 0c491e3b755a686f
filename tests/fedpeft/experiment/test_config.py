"""Experiment: defaults, TOML, overrides, and one line per mistake."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment, differing_keys


def test_experiment_survives_a_toml_round_trip() -> None:
    experiment = Experiment.load("", ["method.name=lora", "local.lr=3e-3", 'task.path=a "b" \\c'])
    for comments in (False, True):
        again = Experiment.load(experiment.to_toml(comments))
        assert again == experiment
        assert again.digest == experiment.digest


def test_every_key_of_printed_toml_has_a_comment() -> None:
    lines = Experiment.load().to_toml(comments=True).splitlines()
    keys = [line for line in lines if " = " in line and not line.startswith('name = "slash"')]
    assert len(keys) > 40
    assert all(" # " in line for line in keys)
    tomllib.loads("\n".join(lines))


def test_defaults_that_depend_on_others_are_written_out() -> None:
    assert Experiment.load().representation == "mean"
    assert Experiment.load('backbone = "roberta-base"').representation == "mask"
    assert (
        Experiment.load('backbone = "roberta-base"\nrepresentation = "cls"').representation == "cls"
    )
    assert Experiment.load("", ["method.name=lora"]).local.lr != Experiment.load().local.lr
    assert Experiment.load("", ["federation.strategy=fedadam"]).federation.server_lr == 0.01
    assert Experiment.load("", ["federation.strategy=krum"]).federation.server_lr is None


@pytest.mark.parametrize(
    "override",
    [
        "method.name=lora",
        "federation.strategy=fedadam",
        "federation.strategy=fedmedian",
        "backbone=roberta-base",
    ],
)
def test_derived_defaults_of_a_printed_experiment_follow_an_override(override: str) -> None:
    printed = Experiment.load().to_toml(comments=True, derived=False)
    assert Experiment.load(printed, [override]) == Experiment.load("", [override])


def test_one_experiment_does_not_change_another() -> None:
    before = Experiment.load().to_toml()
    Experiment.load("", ["method.name=lora", "federation.strategy=fedadam"])
    assert Experiment.load().to_toml() == before


def test_override_of_the_method_drops_settings_of_the_old_method() -> None:
    text = '[method]\nname = "slash"\nd = 99\n'
    assert Experiment.load(text, ["method.name=linear"]).method.name == "linear"
    assert Experiment.load(text, ["method.name=slash"]).method.d == 99


def test_a_study_file_is_named_as_one() -> None:
    with pytest.raises(UserError, match="this is a study file; `fedpeft study run FILE` runs it"):
        Experiment.load("title = 'x'\n[axes]\nseed = [0]\n")


def test_digest_changes_with_every_key() -> None:
    digests = {
        Experiment.load("", [change]).digest
        for change in ("seed=1", "local.lr=0.5", "method.d=3", "task.name=rte", "engine.threads=1")
    }
    assert len(digests) == 5


def test_clients_per_round_follow_fraction_or_number() -> None:
    def count(*overrides: str) -> int:
        return Experiment.load("", ["federation.clients=7", *overrides]).clients_per_round

    assert count() == 7
    assert count("federation.fraction=0.5") == 4
    assert count("federation.fraction=0.01") == 1
    assert count("federation.per_round=3") == 3


def test_differing_keys_give_both_values() -> None:
    one, other = Experiment.load(), Experiment.load("", ["local.epochs=3", "method.name=linear"])
    differing = differing_keys(one, other)
    assert "local.epochs (1 and 3)" in differing
    assert "method.d (1024 and absent)" in differing
    assert differing_keys(one, one) == []


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("local.lrr=1", "unknown key 'local.lrr'; did you mean 'local.lr'"),
        ("seeds=1", "unknown key 'seeds'; did you mean 'seed'"),
        ("federation.fraction=0", "federation.fraction = 0: expected greater than 0"),
        ("federation.fraction=1.5", "federation.fraction = 1.5: expected less than or equal to 1"),
        ("federation.clients=0", "federation.clients = 0"),
        (
            "federation.strategy=fedadm",
            "federation.strategy = 'fedadm': unknown; did you mean 'fedadam'",
        ),
        ("partition.kind=ii", "did you mean 'iid'"),
        ("local.lr=abc", "local.lr = 'abc': expected a valid number"),
        ("local.lr=nan", "local.lr = nan"),
        ("method.d=0", "method.d = 0: expected greater than or equal to 1"),
        ("method.name=lorra", "did you mean 'lora'"),
        ("method.rank=1", "it has: d, position, layers, init"),
        ("federation.per_round=11", "federation.per_round = 11: expected at most"),
        ("federation.min_success=11", "federation.min_success = 11: only 10 clients"),
        ("local", "expected key=value"),
        ("seed.x=1", "unknown key 'seed.x'|seed"),
        (
            "task=5",
            "task = 5: is a section; set a key of it, such as task.name, task.path, task.tra",
        ),
        (
            "federation=3",
            "federation = 3: is a section; set a key of it, such as federation.clients,",
        ),
        ("method=lora", "method = 'lora': is a section; set a key of it, such as method.name"),
        ("method.name=3", "method.name = '3': unknown method"),
        ("backbone=", "backbone = ''"),
        ("task.train=x.tsv", "is for task.name=custom"),
        ("method.d=100000000000000", "method.d = 100000000000000"),
        (
            "engine.kind=actors",
            "expected 'local' or 'ray' (the engine 'actors' is now called 'ray')",
        ),
        ("wire.codec=float16", "write wire.up = 'float16', wire.down = 'float16'"),
        ("wire.up=eden9", "wire.up = 'eden9': expected float32, float16, bfloat16, float64, eden1"),
        ("wire.down=eden0.01", "wire.down = 'eden0.01': expected float32"),
        ("wire.up=4", "wire.up = 4: expected"),
    ],
)
def test_mistake_is_explained_in_one_line(override: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.load("", [override])
    assert re.search("|".join(map(re.escape, words.split("|"))), str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["federation.strategy=krum", "federation.server_lr=0.1"],
        ["federation.strategy=krum", "federation.byzantine=4"],
    ],
)
def test_contradicting_settings_are_refused(overrides: list[str]) -> None:
    with pytest.raises(UserError, match=r"federation.server_lr|federation.byzantine"):
        Experiment.load("", overrides)


ON_CLIENTS = ["federation.evaluation=clients"]
ZEROTH = ["local.perturbations=5", "local.steps=1"]
COMBINED = [
    *(*ZEROTH, "wire.up=scalars", "wire.down=scalars"),
    *("local.optimizer=sgd", "local.max_grad_norm=0"),
]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["wire.up=scalars"], "sends slopes of zeroth-order steps; set local.perturbations"),
        (["wire.up=signs", "local.perturbations=1"], "number of steps; set local.steps"),
        ([*ZEROTH, "wire.up=signs", "local.steps=2"], "expected local.steps = 1, not 2"),
        ([*ZEROTH, "wire.up=scalars", "wire.head=eden1"], "leave out wire.head"),
        (["wire.up=topk0.1", "wire.head=eden1"], "chooses among all numbers; leave out wire.head"),
        (
            ["federation.fednova=true", "federation.max_update_norm=2"],
            "lengthens updates beyond federation.max_update_norm = 2.0; expected 'auto' or 0",
        ),
        (["wire.head=topk0.1"], "wire.head = 'topk0.1': expected float32"),
        (["wire.head=eden9"], "wire.head = 'eden9': expected float32"),
        (["nested.d=4", "nested.share=0.01"], "is 0 of 10 clients; expected some clients, and not"),
        (["nested.d=4", "privacy.unit=both", "privacy.noise_multiplier=1"], "updates of the same"),
        (["nested.d=4", "federation.strategy=fedmedian"], "expected one of fedavg, fedavgm"),
        (["nested.d=4", *ZEROTH], "directions of zeroth-order steps are those of all numbers"),
        (["nested.d=4", "wire.down=delta1"], "wire.down = 'delta1' sends steps of all numbers"),
        (["nested.d=4", "wire.budget=1 KB"], "wire.budget = '1 KB' chooses the length of z"),
        ([*ZEROTH, "wire.down=signs"], "wire.down = 'signs': expected float32"),
        ([*ZEROTH, "wire.down=scalars"], "expected wire.up = 'scalars' or 'signs'"),
        ([*COMBINED, "federation.strategy=krum"], "'fedavg' or 'fedmedian' or 'fedtrimmedavg'"),
        (
            [*COMBINED, "federation.strategy=fedadam"],
            "'fedadam' cannot combine slopes sent as scalars",
        ),
        ([*COMBINED, "wire.up=signs"], "expected federation.strategy = 'fedmedian'"),
        ([*COMBINED, "local.optimizer=adamw"], "expected local.optimizer = 'sgd'"),
        ([*COMBINED, "local.max_grad_norm=1"], "expected local.max_grad_norm = 0, not 1"),
        (
            [*COMBINED, "local.weight_decay=0.1", "federation.server_lr=0.5"],
            "federation.server_lr = 0.5 multiplies slopes and not local.weight_decay",
        ),
        (
            [*COMBINED, "privacy.unit=client", "privacy.epsilon=3"],
            "the noise of privacy.unit = 'client' is no step along the directions",
        ),
        ([*ZEROTH, "wire.up=scalar"], "for secure sums), scalars or signs"),
        (
            [*ZEROTH, "wire.up=scalars", "federation.personal=head", *ON_CLIENTS],
            "leave out federation.personal = 'head'",
        ),
        (
            [*ZEROTH, "privacy.unit=example", "privacy.epsilon=3"],
            "local.perturbations = 5: DP-SGD needs the gradient of each example",
        ),
        (
            [
                *(*ZEROTH, "wire.up=signs", "privacy.unit=client", "privacy.noise_multiplier=1"),
                "privacy.client_noise=clients",
            ],
            "wire.up = 'signs': has no place for privacy.client_noise = 'clients'",
        ),
        ([*ZEROTH, "method.name=full"], "method 'full' changes whole weights"),
        ([*ZEROTH, "head.steepness=2"], "is not slowed by head.steepness = 2; leave one out"),
    ],
)
def test_contradictions_of_zeroth_order_are_explained(overrides: list[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.load("", overrides)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["local.epochs=2"],  # steps of any number; vectors are sent
        ["federation.personal=head", *ON_CLIENTS],
        [*COMBINED, "local.weight_decay=0.1", *ON_CLIENTS],
        [*COMBINED, "wire.up=signs", "federation.strategy=fedmedian"],
        ["wire.up=scalars", "local.steps=3", "privacy.unit=client", "privacy.epsilon=3"],
        ["privacy.unit=client", "privacy.noise_multiplier=1", "privacy.client_noise=clients"],
    ],
)
def test_zeroth_order_goes_with_what_does_not_contradict_it(overrides: list[str]) -> None:
    assert Experiment.load("", ["local.perturbations=5", *overrides]).local.perturbations == 5


def test_unreadable_experiment_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    with pytest.raises(UserError, match="is a folder or a device"):
        Experiment.read(tmp_path)
    with pytest.raises(UserError, match="no experiment file"):
        Experiment.read(path)
    path.write_text("seed = = 3")
    with pytest.raises(UserError, match=r"e.toml: .*not valid TOML"):
        Experiment.read(path)
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"e.toml: not UTF-8 text"):
        Experiment.read(path)


def test_a_byte_order_mark_at_the_start_of_a_file_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "e.toml"
    path.write_bytes(b"\xef\xbb\xbfseed = 3\r\n")
    assert Experiment.read(path) == Experiment.load("seed = 3")


def test_committed_experiment_files_are_valid() -> None:
    files = sorted((Path(__file__).resolve().parents[3] / "simulations").glob("*.toml"))
    assert files
    assert all(Experiment.read(path) for path in files)
