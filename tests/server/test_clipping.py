"""Updates clipped at the median of their round: the rule itself, and attacks on whole runs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from flwr.app import Message
from messaging import changed, vector_of
from safetensors.numpy import load_file

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from server.aggregation.clipping import GROWTH, MULTIPLE, clip, clip_factors, counted
from server.aggregation.updates import Update, expected_steps, weight
from server.exchange.downlink import Broadcast
from server.members.nodes import Node

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
START = np.random.default_rng(0).normal(size=50).astype(np.float32)


def clipped(
    experiment: Experiment, changes: np.ndarray, examples: list[int]
) -> tuple[np.ndarray, list[int]]:
    """The changes after clipping, and the clipped clients."""
    steps = [expected_steps(experiment.local, count) for count in examples]
    updates = {
        c: Update(START + change, None, [], steps=steps[c]) for c, change in enumerate(changes)
    }
    nodes = counted(experiment, {c: Node(c, count) for c, count in enumerate(examples)})
    limited, names = clip(experiment, Broadcast(START, b""), updates, nodes)
    return np.stack([limited[c].vector - START for c in limited]), names


def around(norms: list[float]) -> np.ndarray:
    draw = np.random.default_rng(1).normal(size=(len(norms), len(START)))
    return draw / np.linalg.norm(draw, axis=1, keepdims=True) * np.array(norms)[:, None]


def test_long_updates_are_shortened_to_the_multiple_of_the_median(quick: Quick) -> None:
    changes = around([1.0, 2.0, 1.5, 50.0, 6.1])
    found, names = clipped(quick(), changes, [16] * 5)
    assert names == [3, 4]
    expected = changes.copy()  # the median norm is 2
    for row in names:
        expected[row] *= 2 * MULTIPLE / np.linalg.norm(changes[row])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_longer_training_may_move_further(quick: Quick) -> None:
    """Batches of 16: one, two and four steps."""
    found, names = clipped(quick(), around([1.0, 1.0, 1.6, 3.3, 4.0]), [16, 9, 32, 32, 64])
    assert names == [4]  # 64 examples are beyond the upper quartile: two steps count
    assert np.linalg.norm(found[4]) == pytest.approx(MULTIPLE * 2**GROWTH, rel=1e-5)


def test_expected_steps_follow_the_settings(quick: Quick) -> None:
    changes, sizes = around([1.0, 1.0, 3.3, 3.3]), [16, 16, 32, 32]
    assert clipped(quick(), changes, sizes)[1] == []
    assert clipped(quick("local.epochs=3"), changes, sizes)[1] == []
    assert clipped(quick("local.steps=5"), changes, sizes)[1] == [2, 3]


def test_claimed_examples_beyond_the_quartile_do_not_count(quick: Quick) -> None:
    nodes = {c: Node(c, count) for c, count in enumerate([10, 20, 30, 40, 10**9])}
    found = counted(quick(), nodes)
    assert [node.examples for node in found.values()] == [10, 20, 30, 40, 40]
    assert counted(quick("federation.max_update_norm=0"), nodes) is nodes
    two = counted(quick(), {0: Node(0, 10), 1: Node(1, 10**9)})
    assert [node.examples for node in two.values()] == [10, 10]


def test_the_lower_of_two_norms_is_the_median() -> None:
    factors = clip_factors(np.array([50.0, 1.0]), np.ones(2))
    np.testing.assert_allclose(factors, [MULTIPLE / 50, 1])


def test_an_update_weighs_as_little_as_it_was_clipped_to(quick: Quick) -> None:
    """So the further an update goes beyond the limit, the less it adds to the mean."""
    added = []
    for norm in (1.0, 2.0, 4.0, 20.0, 200.0):
        vectors = around([1.0] * 9 + [norm])
        updates = {c: Update(START + change, None, []) for c, change in enumerate(vectors)}
        nodes = {c: Node(c, 16) for c in updates}
        limited, _ = clip(quick(), Broadcast(START, b""), updates, nodes)
        share = weight(limited[9], nodes[9], "uniform")
        assert share == pytest.approx(min(1, MULTIPLE / norm), rel=1e-5)
        assert weight(limited[9], nodes[9], "examples") == 16 * share
        assert [weight(limited[c], nodes[c], "uniform") for c in range(9)] == [1.0] * 9
        added.append(share * np.linalg.norm(limited[9].vector - START))
    assert added == pytest.approx([1.0, 2.0, 1.0, 0.2, 0.02], rel=1e-4)


def test_updates_of_zero_neither_count_nor_fail() -> None:
    assert clip_factors(np.zeros(3), np.ones(3)).tolist() == [1, 1, 1]
    assert clip_factors(np.array([0, 0, 0, 2.0, 2.0]), np.ones(5)).tolist() == [1] * 5


@pytest.mark.parametrize(
    "settings",
    [
        ["federation.max_update_norm=0"],
        ["federation.max_update_norm=1e6"],
        ["privacy.unit=client", "privacy.client_noise_multiplier=1"],
    ],
)
def test_no_limit_a_number_and_privacy_for_clients_clip_nothing(
    quick: Quick, settings: list[str]
) -> None:
    """The median depends on the data of all clients, so the sensitivity would not be bounded."""
    changes = around([1.0, 1.0, 1.0, 1e3])
    found, names = clipped(quick(*settings), changes, [16] * 4)
    assert names == []
    np.testing.assert_allclose(found, changes, rtol=1e-5, atol=1e-4)


def scaled(factor: float, codec: str = "float32") -> Callable[[Message], Message]:
    """Return a spoiler that multiplies the vector of an update."""

    def spoil(reply: Message) -> Message:
        return changed(reply, v=(vector_of(reply, codec) * np.float32(factor)).tobytes())

    return spoil


SETTINGS = ["federation.clients=10", "federation.rounds=2", "local.warmup=0.1"]


@pytest.mark.parametrize("rounds", [[1], [2]])
def test_one_of_ten_with_a_huge_vector_is_as_good_as_away(
    quick: Quick, federate: Federate, rounds: list[int]
) -> None:
    """In the first round too."""
    experiment = quick(*SETTINGS, "task.train_limit=120")
    honest = federate(experiment, out="honest")
    attacked = federate(experiment, scaled(1e30), client=3, rounds=rounds, out="attacked")
    start, end = (load_file(f.path / "vector.safetensors")["vector"] for f in (honest, attacked))
    hit = rounds[0] - 1
    assert attacked.rounds()[hit]["clipped"] == [3]
    assert attacked.rounds()[1 - hit]["clipped"] == honest.rounds()[1 - hit]["clipped"]
    assert np.linalg.norm(end - start) < 0.1 * np.linalg.norm(start)


def test_slopes_are_clipped_like_vectors(quick: Quick, federate: Federate) -> None:
    settings = ["wire.up=scalars", "wire.down=scalars", "local.perturbations=2", "local.steps=3"]
    settings += ["local.optimizer=sgd", "local.max_grad_norm=0", "local.lr=0.01"]
    folder = federate(quick(*SETTINGS, *settings), scaled(1e6), client=3, rounds=[2], out="slopes")
    assert 3 in folder.rounds()[1]["clipped"]  # slopes of honest clients differ more than updates
    assert np.abs(load_file(folder.path / "vector.safetensors")["vector"]).max() < 100
