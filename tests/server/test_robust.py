"""Robust rules against byzfl, Flower and literal versions; what they need; and their bounds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from math import floor
from types import ModuleType

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import Bulyan, FedAvg, Krum, MultiKrum

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.robust import ROBUST, needed, tolerated
from server import robust
from server.strategies import next_vector

Quick = Callable[..., Experiment]
MALICIOUS = 2
N, P = 11, 40  # enough for Bulyan: 4 * 2 + 3


@pytest.fixture(scope="module")
def rules(byzfl: Callable[[str], ModuleType]) -> ModuleType:
    return byzfl("aggregators")


def updates(seed: int, attacked: bool = True) -> np.ndarray:
    """Honest updates around a common direction, and ``MALICIOUS`` far ones at the end."""
    draw = np.random.default_rng(seed)
    made = draw.normal(size=P) + draw.normal(scale=0.5, size=(N, P))
    if attacked:
        made[-MALICIOUS:] *= -10
    return made


@pytest.fixture(params=range(5))
def given(request: pytest.FixtureRequest) -> np.ndarray:
    return updates(request.param)


def test_median_and_trimmed_mean_equal_byzfl(rules: ModuleType, given: np.ndarray) -> None:
    np.testing.assert_allclose(robust.median(given), rules.Median()(given))
    for drop in (1, 2, 5):
        np.testing.assert_allclose(robust.trimmed_mean(given, drop), rules.TrMean(drop)(given))


def test_a_round_drops_the_share_in_decimals() -> None:
    settings = ["federation.strategy=fedtrimmedavg", "federation.trim=0.29"]
    experiment = Experiment.load("", [*settings, "federation.clients=100"])
    given = np.random.default_rng(0).normal(size=(100, P))
    step, _ = robust.robust_step(experiment, 1, given, {})
    np.testing.assert_array_equal(step, robust.trimmed_mean(given, 29))  # 0.29 * 100 < 29


def test_geometric_median_equals_byzfl_and_is_a_minimum(
    rules: ModuleType, given: np.ndarray
) -> None:
    ours = robust.geometric_median(given, steps=3, smooth=0.1)
    np.testing.assert_allclose(ours, rules.GeometricMedian(nu=0.1, T=3)(given))

    def sum_of_distances(point: np.ndarray) -> float:
        return float(np.linalg.norm(given - point, axis=1).sum())

    best = robust.geometric_median(given)
    draw = np.random.default_rng(0)
    for size in (1e-3, 1e-1, 1.0):
        other = best + size * draw.normal(size=P)
        assert sum_of_distances(best) < sum_of_distances(other)


def test_centered_clipping_equals_byzfl(rules: ModuleType, given: np.ndarray) -> None:
    center = np.random.default_rng(1).normal(size=P)
    ours = robust.centered_clipping(given, center, radius=2.0, steps=3)
    theirs = rules.CenteredClipping(L=3, tau=2.0)
    theirs.m = center  # its constructor accepts no array
    np.testing.assert_allclose(ours, theirs(given))


def test_krum_and_multikrum_equal_byzfl_with_one_neighbor_less(
    rules: ModuleType, given: np.ndarray
) -> None:
    """byzfl counts n - f - 1 neighbors, Blanchard et al. n - f - 2."""
    np.testing.assert_allclose(robust.krum(given, MALICIOUS), rules.Krum(MALICIOUS + 1)(given))
    several = robust.krum(given, MALICIOUS, N - MALICIOUS - 1)
    np.testing.assert_allclose(several, rules.MultiKrum(MALICIOUS + 1)(given))


def test_mixing_equals_byzfl(rules: ModuleType, given: np.ndarray) -> None:
    mixed = robust.nearest_neighbor_mixing(given, MALICIOUS)
    np.testing.assert_allclose(mixed, rules.NNM(MALICIOUS)(given))


@pytest.mark.parametrize("size", [2, 3, 11, 20])
def test_buckets_are_means_of_a_random_partition(given: np.ndarray, size: int) -> None:
    """Literally, from the same permutation; byzfl's comes from a global generator."""
    order = np.random.default_rng(7).permutation(N)
    expected = [given[order[at : at + size]].mean(0) for at in range(0, N, size)]
    made = robust.bucketing(given, size, np.random.default_rng(7))
    np.testing.assert_allclose(made, expected)
    assert len(made) == floor((N - 1) / size) + 1


def flowers(strategy: FedAvg, given: np.ndarray) -> np.ndarray:
    """What Flower's strategy makes of vectors, without a server."""
    request = Message(RecordDict({"c": ConfigRecord()}), dst_node_id=1, message_type="train")
    replies = [
        Message(
            RecordDict(
                {"a": ArrayRecord({"v": Array(row)}), "m": MetricRecord({"num-examples": 1.0})}
            ),
            reply_to=request,
        )
        for row in given
    ]
    arrays, _ = strategy.aggregate_train(1, replies)
    assert arrays is not None
    return arrays["v"].numpy()


@pytest.mark.usefixtures("flower_run")
@pytest.mark.parametrize("given", [0, 1], indirect=True)
def test_krum_multikrum_and_bulyan_equal_flower(given: np.ndarray) -> None:
    names = {"arrayrecord_key": "a"}
    one = flowers(Krum(num_malicious_nodes=MALICIOUS, **names), given)
    np.testing.assert_allclose(robust.krum(given, MALICIOUS), one)
    many = MultiKrum(num_malicious_nodes=MALICIOUS, num_nodes_to_select=6, **names)
    np.testing.assert_allclose(robust.krum(given, MALICIOUS, 6), flowers(many, given))
    bulyan = flowers(Bulyan(num_malicious_nodes=MALICIOUS, **names), given)
    np.testing.assert_allclose(robust.bulyan(given, MALICIOUS), bulyan)


def literal_krum_scores(given: np.ndarray, malicious: int) -> list[float]:
    """Blanchard et al. 2017, section 4: the sum over the n - f - 2 closest others."""
    scores = []
    for row, vector in enumerate(given):
        others = np.delete(given, row, axis=0)
        squares = np.sort(((others - vector) ** 2).sum(1))
        scores.append(float(squares[: len(given) - malicious - 2].sum()))
    return scores


def test_krum_takes_the_best_update_whole(given: np.ndarray) -> None:
    best = int(np.argmin(literal_krum_scores(given, MALICIOUS)))
    assert best < N - MALICIOUS
    assert np.array_equal(robust.krum(given, MALICIOUS), given[best])


def test_small_steps_of_a_long_vector_are_told_apart(quick: Quick) -> None:
    """In float32, distances between whole vectors would be rounding errors."""
    current = np.random.default_rng(2).normal(scale=1e4, size=P).astype(np.float32)
    steps = np.round(updates(3) * 8) / 8  # exact in float32 beside 1e4
    experiment = quick(
        "federation.clients=11", "federation.strategy=krum", "federation.byzantine=2"
    )
    rows = [((current + step).astype(np.float32), 1.0) for step in steps]
    new, _ = next_vector(experiment, 1, current, rows, {})
    exact = np.stack([row for row, _ in rows]).astype(np.float64)
    best = int(np.argmin(literal_krum_scores(exact, MALICIOUS)))
    assert np.array_equal(new, rows[best][0])


CHOICES = [
    ("fedmedian", "none"),
    ("fedtrimmedavg", "none"),
    ("geometric_median", "none"),
    ("centered_clipping", "none"),
    ("krum", "none"),
    ("multikrum", "none"),
    ("bulyan", "none"),
    ("fedmedian", "nnm"),
    ("fedtrimmedavg", "nnm"),
    ("krum", "nnm"),
    ("geometric_median", "bucketing"),
    ("fedmedian", "bucketing"),
]


def chosen(quick: Quick, strategy: str, mixing: str, clients: int = N) -> Experiment:
    settings = [f"clients={clients}", f"strategy={strategy}", f"mixing={mixing}"]
    uses = strategy in ("krum", "multikrum", "bulyan") or mixing == "nnm"
    settings += [f"byzantine={MALICIOUS}"] if uses else []
    settings += ["trim=0.4"] if strategy == "fedtrimmedavg" else []
    return quick(*(f"federation.{setting}" for setting in settings))


@pytest.mark.parametrize(("strategy", "mixing"), CHOICES)
def test_no_place_of_the_attackers_moves_a_rule_far(
    quick: Quick, strategy: str, mixing: str
) -> None:
    """As many attackers as tolerated, at any place, sending -10x, 1e6, or one of them 1e15."""
    experiment = chosen(quick, strategy, mixing)
    assert tolerated(experiment.federation, N) >= MALICIOUS
    honest = updates(4, attacked=False)
    spread = np.linalg.norm(honest - honest.mean(0), axis=1).max()
    start = np.zeros(P)
    for places in list(combinations(range(N), MALICIOUS))[::9]:
        blinding = honest * -10
        blinding[places[0]] = 1e15  # as large as float64 has digits
        for attack in (honest * -10, np.full_like(honest, 1e6), blinding):
            sent = honest.copy()
            sent[list(places)] = attack[list(places)]
            rows = [(row, 1.0) for row in sent]
            moved, _ = next_vector(experiment, 1, start, rows, {})
            rest = np.delete(honest, places, axis=0).mean(0)
            assert np.linalg.norm(moved - rest) < 1.5 * spread
            assert np.linalg.norm(sent.mean(0) - rest) > 2 * spread


@pytest.mark.parametrize(
    ("strategy", "mixing", "malicious", "clients"),
    [
        ("krum", "none", 2, 7),
        ("multikrum", "none", 2, 7),
        ("bulyan", "none", 2, 11),
        ("fedmedian", "nnm", 3, 7),
        ("krum", "nnm", 2, 7),
        ("krum", "bucketing", 1, 9),  # 5 buckets
    ],
)
def test_a_rule_with_too_few_clients_is_refused(
    quick: Quick, strategy: str, mixing: str, malicious: int, clients: int
) -> None:
    settings = [f"strategy={strategy}", f"byzantine={malicious}", f"mixing={mixing}"]
    settings = [f"federation.{setting}" for setting in settings]
    enough = quick(*settings, f"federation.clients={clients}").federation
    assert needed(enough) == clients
    with pytest.raises(UserError, match=f"needs {clients} clients per round, got {clients - 1}"):
        quick(*settings, f"federation.clients={clients - 1}")


def test_settings_without_effect_are_refused(quick: Quick) -> None:
    for settings, said in [
        (["strategy=fedmedian", "byzantine=1"], "federation.byzantine = 1: strategy 'fedmedian'"),
        (["mixing=nnm"], "expected federation.strategy = one of fedmedian"),
        (["strategy=krum", "weighting=examples", "clients=5"], "counts all clients alike"),
        (["strategy=krum", "server_lr=1", "clients=5"], "strategy 'krum' does not use it"),
        (
            ["strategy=fedtrimmedavg", "mixing=bucketing", "clients=9", "trim=0.15"],
            "drops none of 5 updates",
        ),
    ]:
        with pytest.raises(UserError, match=said):
            quick(*(f"federation.{setting}" for setting in settings))


def test_every_robust_strategy_is_tested_here() -> None:
    assert {strategy for strategy, _ in CHOICES} == set(ROBUST)
