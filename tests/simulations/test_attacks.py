"""What malicious clients send, against byzfl and literal versions."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from server.flower import new_run
from simulations.engines import attacks
from simulations.engines.adversary import craft, expected_step

Quick = Callable[..., Experiment]
HONEST = np.random.default_rng(0).normal(1.0, 0.5, (8, 30))
OWN = np.random.default_rng(1).normal(1.0, 0.5, (2, 30))
CHANGES = dict(enumerate(np.concatenate([HONEST, OWN])))
ATTACKERS = [8, 9]


def sent(experiment: Experiment) -> np.ndarray:
    """What the two attackers of ten send, [2, P]."""
    made = craft(experiment, 1, CHANGES, ATTACKERS)
    assert sorted(made) == ATTACKERS
    return np.stack([made[client] for client in ATTACKERS])


@pytest.fixture(scope="module")
def formulas(byzfl: Callable[[str], ModuleType]) -> ModuleType:
    return byzfl("attacks.attacks")


def test_alie_and_ipm_equal_byzfl(formulas: ModuleType) -> None:
    for strength in (0.3, 1.5):
        np.testing.assert_allclose(
            attacks.little_is_enough(HONEST, strength), formulas.ALittleIsEnough(strength)(HONEST)
        )
        np.testing.assert_allclose(
            attacks.inner_product(HONEST, strength),
            formulas.InnerProductManipulation(strength)(HONEST),
        )


def test_alie_uses_the_strength_of_the_paper() -> None:
    """Baruch et al. 2019, algorithm 3, with their 50 clients and 12 attackers."""
    # 26 are a majority: 14 honest supporters, so 24 of 38 honest ones may lie on the other side.
    assert attacks.largest_unseen(50, 12) == pytest.approx(0.3360, abs=1e-3)
    assert attacks.largest_unseen(25, 10) > attacks.largest_unseen(25, 5) > 0


@pytest.mark.parametrize("strategy", ["fedavg", "fedmedian", "krum", "geometric_median"])
@pytest.mark.parametrize("attack", ["alie_optimal", "ipm_optimal"])
def test_optimal_attacks_move_the_aggregate_as_far_as_a_fine_search(
    quick: Quick, attack: str, strategy: str
) -> None:
    byzantine = ["federation.byzantine=2"] if strategy == "krum" else []
    experiment = quick(
        "federation.clients=10",
        "adversary.fraction=0.2",
        f"adversary.attack={attack}",
        f"federation.strategy={strategy}",
        *byzantine,
    )
    new_run()  # Flower averages messages of a run
    formula = attacks.inner_product if attack.startswith("ipm") else attacks.little_is_enough

    def moved(sent: np.ndarray) -> float:
        everybody = np.concatenate([HONEST, np.tile(sent, (2, 1))])
        return float(np.linalg.norm(expected_step(experiment, 1, everybody) - HONEST.mean(axis=0)))

    sizes = np.geomspace(0.05, 50, 200)  # 3.5 % apart
    finest = max(moved(formula(HONEST, each)) for each in (*-sizes, *sizes))
    made = sent(experiment)
    # Strengths are 16 % apart, and Krum accepts attackers up to some strength only.
    assert moved(made[0]) >= 0.84 * finest
    np.testing.assert_array_equal(made[0], made[1])


def test_attacks_on_own_updates(quick: Quick) -> None:
    def factor(*settings: str) -> np.ndarray:
        return sent(quick("federation.clients=10", "adversary.fraction=0.2", *settings)) / OWN

    np.testing.assert_allclose(factor("adversary.attack=sign_flip"), -1)
    np.testing.assert_allclose(factor("adversary.attack=scaling"), -10)
    np.testing.assert_allclose(factor("adversary.attack=scaling", "adversary.strength=-50"), -50)
    np.testing.assert_allclose(factor("adversary.attack=label_flip"), 1)
    # Ten clients share a round: two attackers need five times their update to replace the mean.
    np.testing.assert_allclose(factor("adversary.attack=backdoor"), 5)


def test_gaussian_noise_has_the_length_asked_for(quick: Quick) -> None:
    base = ("federation.clients=10", "adversary.fraction=0.2", "adversary.attack=gaussian")
    made = sent(quick(*base, "adversary.strength=3"))[0]
    length = np.linalg.norm(HONEST, axis=1).mean()
    assert np.linalg.norm(made) == pytest.approx(3 * length)
    again = sent(quick(*base, "adversary.strength=3"))[0]
    np.testing.assert_array_equal(made, again)
    assert not np.array_equal(made, sent(quick(*base, "adversary.strength=3", "seed=1"))[0])


def test_mimic_copies_the_honest_update_furthest_along_the_largest_variance(quick: Quick) -> None:
    centered = HONEST - HONEST.mean(axis=0)
    _, _, right = np.linalg.svd(centered)
    furthest = HONEST[np.abs(centered @ right[0]).argmax()]
    experiment = quick("federation.clients=10", "adversary.fraction=0.2", "adversary.attack=mimic")
    np.testing.assert_array_equal(sent(experiment), [furthest, furthest])


def test_attackers_alone_know_their_own_updates(quick: Quick) -> None:
    experiment = quick("federation.clients=10", "adversary.fraction=0.2", "adversary.attack=ipm")
    alone = {client: CHANGES[client] for client in ATTACKERS}
    made = craft(experiment, 1, alone, ATTACKERS)
    np.testing.assert_allclose(made[8], -0.5 * OWN.mean(axis=0))
