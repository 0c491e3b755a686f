"""Malicious clients of whole simulations: what they change, what holds them, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedpeft.errors import UserError
from fedpeft.experiment.adversary import Attack, too_many
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of
from fedpeft.simulated.adversary import malicious, poisoned, target_of, triggered
from simulations.simulation import prepare, simulate

Quick = Callable[..., Experiment]
Run = Callable[..., tuple[RunFolder, dict[str, Any]]]
Final = Callable[[Path], np.ndarray]
FIVE = ("federation.clients=5", "adversary.fraction=0.4")  # two of five


def test_the_malicious_clients_follow_the_seed(quick: Quick) -> None:
    many = [
        malicious(quick("federation.clients=50", "adversary.fraction=0.2", f"seed={seed}"))
        for seed in (0, 0, 1)
    ]
    assert [len(each) for each in many] == [10, 10, 10]
    assert many[0] == many[1] != many[2]
    assert all(0 <= client < 50 for each in many for client in each)


@pytest.fixture(scope="module")
def honest(quick: Quick, tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """The final vector of a run without attackers."""
    folder, _ = prepare(quick("federation.clients=5"), tmp_path_factory.mktemp("honest") / "run")
    simulate(folder, Experiment.read(folder.path / "experiment.toml"))
    return load_file(folder.path / "vector.safetensors")["vector"]


@pytest.mark.parametrize("attack", get_args(Attack))
def test_every_attack_changes_a_run_and_gives_the_same_bits_again(
    quick: Quick, run: Run, final_vector: Final, honest: np.ndarray, attack: str
) -> None:
    attacked, result = run(quick(*FIVE, f"adversary.attack={attack}"), "attacked")
    again, _ = run(quick(*FIVE, f"adversary.attack={attack}"), "again")
    vector = final_vector(attacked.path)
    assert np.isfinite(vector).all()
    assert not np.array_equal(vector, honest)
    np.testing.assert_array_equal(vector, final_vector(again.path))
    assert ("attack_success" in attacked.rounds()[-1]["metrics"]) == (attack == "backdoor")
    assert result["clients"] == 5


@pytest.mark.parametrize("wire", ["float16", "eden1"])
def test_attacks_travel_in_the_codec_of_the_run(
    quick: Quick, run: Run, final_vector: Final, wire: str
) -> None:
    base = ("federation.clients=5", f"wire.up={wire}")
    honest, _ = run(quick(*base), "honest")
    attacked, _ = run(quick(*base, *FIVE, "adversary.attack=ipm"), "attacked")
    for before, after in zip(honest.rounds(), attacked.rounds(), strict=True):
        assert after["failed"] == []
        assert after["bytes"]["up"] == before["bytes"]["up"]
    assert not np.array_equal(final_vector(honest.path), final_vector(attacked.path))


@pytest.mark.parametrize(
    "settings",
    [
        ["wire.down=delta1"],
        ["nested.d=4", "seed=1"],
        ["wire.up=signs", "local.perturbations=1", "local.steps=1"],
        ["wire.up=topk0.1"],
    ],
)
def test_attackers_that_train_on_wrong_labels_send_what_others_do(
    quick: Quick, run: Run, settings: list[str]
) -> None:
    """Their updates are not replaced, so no codec is in the way."""
    base = ("federation.clients=5", *settings)
    honest, _ = run(quick(*base), "honest")
    attacked, _ = run(quick(*base, *FIVE, "adversary.attack=label_flip"), "attacked")
    for before, after in zip(honest.rounds(), attacked.rounds(), strict=True):
        assert after["failed"] == [] and after["loss"] != before["loss"]


def test_attackers_of_a_cohort_attack_too(quick: Quick, run: Run, final_vector: Final) -> None:
    settings = (*FIVE, "adversary.attack=alie")
    alone, _ = run(quick(*settings, "engine.cohort=1"), "alone")
    together, _ = run(quick(*settings, "engine.cohort=5"), "together")
    np.testing.assert_allclose(
        final_vector(alone.path), final_vector(together.path), rtol=1e-3, atol=1e-4
    )


def test_a_scaled_update_is_clipped_and_a_number_refuses_it(quick: Quick, run: Run) -> None:
    one = ("federation.clients=5", "adversary.fraction=0.2", "adversary.attack=scaling")
    folder, _ = run(quick(*one, "adversary.strength=-50"), "clipped")
    [attacker] = malicious(folder_experiment(folder))
    assert all(attacker in line["clipped"] for line in folder.rounds())
    refused, _ = run(
        quick(*one, "adversary.strength=-50", "federation.max_update_norm=0.5"), "refused"
    )
    for line in refused.rounds():
        assert [failure["client"] for failure in line["failed"]] == [attacker]


def folder_experiment(folder: RunFolder) -> Experiment:
    return Experiment.load((folder.path / "experiment.toml").read_text())


def test_data_attacks_change_the_examples_of_malicious_clients(quick: Quick) -> None:
    experiment = quick(*FIVE, "adversary.attack=label_flip")
    runtime = runtime_of(experiment)
    examples = runtime.task.dev
    flipped = poisoned(examples, experiment, runtime.task.info, 0)
    np.testing.assert_array_equal(flipped.labels, 1 - examples.labels)
    assert flipped.text == examples.text

    backdoor = quick(*FIVE, "adversary.attack=backdoor", "adversary.trigger=zz")
    target = target_of(backdoor, runtime.task.info)
    poison = poisoned(examples, backdoor, runtime.task.info, 0)
    marked = [place for place, text in enumerate(poison.text) if text.startswith("zz ")]
    assert len(marked) == len(examples) // 2
    assert set(poison.labels[marked]) == {target}
    rest = [place for place in range(len(examples)) if place not in marked]
    np.testing.assert_array_equal(poison.labels[rest], examples.labels[rest])
    every = triggered(examples, backdoor, runtime.task.info, np.arange(len(examples)))
    assert every.text == [f"zz {text}" for text in examples.text]


def test_targets_are_classes_of_the_task(quick: Quick) -> None:
    base = (*FIVE, "adversary.attack=backdoor")
    info = runtime_of(quick()).task.info
    assert target_of(quick(*base, "adversary.target=negative"), info) == 0
    with pytest.raises(
        UserError, match=r"adversary\.target = 'odd': expected one of negative, pos"
    ):
        target_of(quick(*base, "adversary.target=odd"), info)
    tags = runtime_of(quick("task.name=synthetic/entities")).task.info
    with pytest.raises(UserError, match="is for tasks with classes; 'synthetic/entities' has tags"):
        target_of(quick(*base), tags)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (("adversary.fraction=1.5",), "adversary.fraction"),
        (("adversary.attack=ipm",), "adversary.attack = 'ipm': no client is malicious"),
        (("adversary.fraction=0.01",), "is 0 of 3 clients; expected some clients, and not all"),
        (("adversary.fraction=0.4", "adversary.strength=2"), "sign_flip has none"),
        (("adversary.fraction=0.4", "adversary.trigger=zz"), "is for backdoor, not sign_flip"),
        (("adversary.fraction=0.4", "wire.up=topk0.1"), "got 'topk0.1' and 'float32'"),
        (("adversary.fraction=0.4", "adversary.attack=inverse"), "adversary.attack"),
        (
            (
                "adversary.fraction=0.4",
                "adversary.attack=backdoor",
                "federation.evaluation=clients",
            ),
            "set federation.evaluation = 'server'",
        ),
    ],
)
def test_bad_settings_get_one_line(quick: Quick, settings: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as raised:
        quick(*settings)
    assert line in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("strategy", "attackers", "bound"),
    [
        ("fedavg", 1, 0),
        ("fedmedian", 5, 4),
        ("krum", 3, 2),
        ("bulyan", 2, 1),
        ("fedtrimmedavg", 2, 1),
    ],
)
def test_a_warning_names_what_the_strategy_tolerates(
    quick: Quick, strategy: str, attackers: int, bound: int
) -> None:
    def warning(malicious: int) -> str:
        rule = [f"federation.byzantine={bound}"] if strategy in ("krum", "bulyan") else []
        if strategy == "fedtrimmedavg":
            rule = ["federation.trim=0.1"]
        experiment = quick(
            "federation.clients=10",
            f"federation.strategy={strategy}",
            f"adversary.fraction={malicious / 10}",
            *rule,
        )
        return too_many(experiment.adversary, experiment.federation, 10)

    assert warning(attackers) == (
        f"warning: about {attackers} of 10 clients attack in a round, and {strategy} tolerates "
        f"{bound}"
    )
    if bound:
        assert warning(bound) == ""
