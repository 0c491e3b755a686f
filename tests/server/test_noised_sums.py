"""Runs whose clients add noise for whole clients to sums under masks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from messaging import changed
from outcomes import final_vector
from scipy import stats

from clients.app import app as client_app
from clients.data.client_data import simulated_ledger
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.ledger import read_ledger
from fedpeft.privacy.plan import client_plan
from fedpeft.privacy.skellam import variance
from fedpeft.randomness import generator
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import runtime_of
from fedpeft.secure.masks import FACTS
from fedpeft.updates import sums
from fedpeft.wire import steps, uniform
from fedpeft.wire.messages import RECORD
from server.app import app as server_app
from server.rounds.training import least_spent
from simulations.engines.grid import NodeConfig
from simulations.engines.local import run_local
from simulations.simulation import prepare

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
CLIP = 0.5
NOISED = [
    *("federation.secure=true", "federation.clients=5", "secure.colluders=1"),
    *("privacy.unit=client", "privacy.client_noise=secure", f"privacy.client_clip={CLIP}"),
]
ONE = [*NOISED, "federation.rounds=1", "engine.dtype=float64", "privacy.reproducible=true"]


def lost(reply: Message) -> Message:
    raise ValueError("lost")


@pytest.mark.parametrize("survivors", [5, 4])
@pytest.mark.parametrize("bits", [2, 8])
def test_the_sum_less_the_updates_is_the_noise_of_those_that_stayed(
    quick: Quick, federate: Federate, bits: int, survivors: int
) -> None:
    """Four of five have to stay, and two of them are honest in every sum that can be read."""
    settings = [*ONE, f"wire.up=uniform{bits}", "method.d=64"]
    noised = quick(*settings, "privacy.noise_multiplier=0.8")
    exact = quick(*settings, "privacy.noise_multiplier=0")
    spoil = {"spoil": lost, "client": 2} if survivors == 4 else {}
    runs = [federate(each, out=str(place), **spoil) for place, each in enumerate((noised, exact))]
    vectors = [final_vector(run).astype(np.float64) for run in runs]
    size = len(vectors[0])
    turned = uniform.rotated(
        (vectors[0] - vectors[1]) * survivors, generator(noised.seed, "sum-rotation", 1)
    )
    noise = turned / uniform.distance(size, bits, CLIP)
    whole = np.round(noise)
    np.testing.assert_allclose(noise, whole, atol=1e-3)  # the vector is float32
    assert sums.honest(noised) == 2
    mu = variance(0.8, steps.norm_limit(size, bits)) * survivors / 2
    assert whole.var() == pytest.approx(mu, rel=5 * (2 / size) ** 0.5)
    blurred = whole + np.random.default_rng(0).random(size) - 0.5
    assert stats.kstest(blurred, stats.norm(0, (mu + 1 / 12) ** 0.5).cdf).pvalue > 1e-4


def test_without_noise_the_vector_is_that_of_a_trusted_server(
    quick: Quick, federate: Federate
) -> None:
    exact = ["privacy.noise_multiplier=0", "privacy.client_clip=0.02"]  # below all norms
    trusted = ["federation.clients=5", "privacy.unit=client", *ONE[-3:], *exact]
    runs = [quick(*ONE, *exact, "wire.up=uniform8"), quick(*trusted)]
    start = runtime_of(runs[0]).parameters.initial_shared(0)
    ends = [final_vector(federate(run, out=str(place))) for place, run in enumerate(runs)]
    changes = [end.astype(np.float64) - start for end in ends]
    assert np.linalg.norm(changes[1]) > 0.005
    assert np.linalg.norm(changes[0] - changes[1]) < 0.03 * np.linalg.norm(changes[1])


def test_replies_hold_the_masked_levels_and_a_composition_only(
    quick: Quick, federate: Federate
) -> None:
    seen: set[str] = set()

    def look(reply: Message) -> Message:
        seen.update(dict(reply.content[RECORD]))
        return reply

    folder = federate(quick(*NOISED, "privacy.noise_multiplier=1"), look)
    assert seen == {"v", "c"}
    assert [line["loss"] for line in folder.rounds()] == [None, None]


@pytest.mark.parametrize("norm", [0.0, 0.1, 1e9, np.inf, np.nan])
def test_facts_are_zero_and_an_update_that_is_not_finite_counts_as_zero(
    quick: Quick, norm: float
) -> None:
    experiment = quick(*ONE, "privacy.noise_multiplier=0")
    change = np.full(500, norm)
    levels, facts = sums.encoded(experiment, 1, 0, change, 0.7, CLIP, 1.0, Silent())
    assert facts.tolist() == [0] * FACTS
    assert levels.any() == (0 < norm < np.inf)
    assert sums.next_clip_norm(experiment, CLIP, 3.0) == sums.first_clip_norm(experiment, 500, 9)


def test_an_update_without_noise_is_never_encoded(quick: Quick) -> None:
    experiment = quick(*NOISED, "privacy.noise_multiplier=1")
    with pytest.raises(ValueError, match="the update has no noise"):
        sums.encoded(experiment, 1, 0, np.ones(500), 0.0, CLIP, 1.0)


class Silent:
    """A source that is not asked, because there is no noise."""

    def words(self, size: int) -> np.ndarray:
        raise AssertionError("noise was drawn")


@pytest.mark.parametrize("bits", [1, 4, 8])
@pytest.mark.parametrize("clients", [10, 50])
def test_the_ring_holds_the_sum_of_all_clients(quick: Quick, bits: int, clients: int) -> None:
    """Clients that all send the longest update in one direction, with noise in the same."""
    experiment = quick(
        *(*NOISED, f"federation.clients={clients}", f"wire.up=uniform{bits}"),
        *("privacy.noise_multiplier=1", "secure.colluders=2"),
    )
    size = 1794
    width = sums.width(experiment, clients, size)
    noise = (clients * sums.noise_variance(experiment, size)) ** 0.5
    assert 2 ** (width - 1) > clients * steps.furthest(bits) + 6.9 * noise
    assert width == sums.width(experiment, clients - 1, size)
    assert sums.update_bytes(experiment, size) == -(-size * width // 8) + 12


def test_noise_of_the_honest_survivors_suffices(quick: Quick) -> None:
    """The calibration: every sum that can be read has the noise that ledgers are charged for."""
    for clients, colluders, threshold, least in [
        (10, 1, 0, 5),
        (10, 1, 9, 7),
        (10, 1, 10, 9),
        (100, 10, 0, 45),
        (50, 2, 48, 44),
    ]:
        experiment = quick(
            *(*NOISED, f"federation.clients={clients}", "privacy.epsilon=2"),
            *(f"secure.colluders={colluders}", f"secure.threshold={threshold}"),
        )
        assert sums.honest(experiment) == least
        sigma = client_plan(experiment).mechanism.noise_multiplier
        needed = sigma**2 * steps.norm_limit(1794, 4)
        assert sums.noise_variance(experiment, 1794) * least >= needed


def test_statements_and_ledgers_have_each_clients_epsilon(quick: Quick, federate: Federate) -> None:
    folder = federate(quick(*NOISED, "privacy.noise_multiplier=1", "privacy.delta=1e-3"))
    said = json.loads((folder.path / "result.json").read_text())["privacy"]["client"]
    expected = spent([Mechanism(1.0, 1.0, 2, "skellam")], 1e-3)
    assert said["epsilon"] == expected.epsilon and said["accountant"] == "rdp"
    assert (said["sampling"], said["sampling_rate"], said["steps"]) == ("none", 1, 2)
    assert said["clip"] == CLIP and said["releasable"]
    assert said["neighbouring"].startswith("replace the update of one client, in each of its")
    assert "together with up to 1 client of each round" in said["mechanism"]
    assert "no amplification by sampling" in said["mechanism"]
    for client in range(5):
        path = simulated_ledger(folder.path / "privacy", client)
        charges = read_ledger(path).charges
        assert [charge.mechanism for charge in charges] == [Mechanism(1.0, 1.0, 1, "skellam")] * 2
        assert spent([charge.mechanism for charge in charges], 1e-3) == expected


def test_the_ledger_is_charged_before_the_update_leaves(quick: Quick, federate: Federate) -> None:
    """And a lost reply is paid for: the server states the most that its client may have spent."""
    folder = federate(quick(*NOISED, "privacy.noise_multiplier=1"), lost, client=3, rounds=[2])
    charges = read_ledger(simulated_ledger(folder.path / "privacy", 3)).charges
    assert [charge.round for charge in charges] == [1, 2]
    first, second = folder.rounds()
    assert second["epsilon"] > first["epsilon"]


def test_a_client_without_budget_refuses_and_sends_nothing(
    quick: Quick, federate: Federate
) -> None:
    once = spent([Mechanism(1.0, 1.0, 1, "skellam")], 0.01).epsilon
    settings = [*NOISED, "privacy.noise_multiplier=1", "privacy.delta=0.01"]
    replies: list[dict[str, Any]] = []

    def keep(reply: Message) -> Message:
        if not reply.has_error():
            replies.append(dict(reply.content[RECORD]))
        return reply

    experiment = quick(*settings, f"privacy.budget={once * 1.01}", "federation.min_success=1")
    folder = federate(experiment, keep)
    assert len(replies) == 5  # of round 1
    for client in range(5):
        charges = read_ledger(simulated_ledger(folder.path / "privacy", client)).charges
        assert [charge.round for charge in charges] == [1]


def test_a_client_that_reports_other_noise_is_refused(quick: Quick, federate: Federate) -> None:
    def gaussian(reply: Message) -> Message:
        numbers = np.frombuffer(bytes(reply.content[RECORD]["c"]), "<f8").copy()
        numbers[3] *= -1  # the steps, negative for Skellam noise
        return changed(reply, c=numbers.tobytes())

    folder = federate(quick(*NOISED, "privacy.noise_multiplier=1"), gaussian, client=1, rounds=[1])
    [failed] = folder.rounds()[0]["failed"]
    assert failed["client"] == 1 and "of another mechanism" in failed["reason"]


class Asked(ClientApp):
    """The real client app, which is asked for each update twice."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[tuple[bytes, bytes]] = []

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if message.metadata.message_type == "train":
            again = client_app(message, context)
            both = [bytes(each.content[RECORD]["v"]) for each in (reply, again)]
            self.updates.append((both[0], both[1]))
        return reply


def test_a_repeated_request_gets_the_same_noise(
    quick: Quick, tmp_path: Path, node_configs: Callable[..., list[NodeConfig]]
) -> None:
    """Noise from the operating system: two draws would differ."""
    experiment = quick(*NOISED, "privacy.noise_multiplier=1")
    folder, _ = prepare(experiment, tmp_path / "run")
    asked = Asked()
    config: NodeConfig = {"experiment": experiment.to_toml(), "out": str(folder.path)}
    run_local(server_app, asked, node_configs(experiment), config)
    assert len(asked.updates) == 10
    assert all(first == second for first, second in asked.updates)
    assert len({first for first, _ in asked.updates}) == 10


def test_two_runs_have_different_noise(quick: Quick, federate: Federate) -> None:
    experiment = quick(*NOISED, "privacy.noise_multiplier=1", "federation.rounds=1")
    one, other = (final_vector(federate(experiment, out=out)) for out in ("one", "other"))
    assert (one != other).mean() > 0.9


def interrupt(reply: Message) -> Message:
    raise KeyboardInterrupt


@pytest.mark.parametrize("kind", ["train", "query.unmask"])
def test_an_interrupted_run_ends_with_the_same_bits(
    quick: Quick, federate: Federate, kind: str
) -> None:
    experiment = quick(*NOISED, "privacy.noise_multiplier=1", "privacy.reproducible=true")
    whole = federate(experiment, out="whole")
    with pytest.raises(KeyboardInterrupt):
        federate(experiment, interrupt, kind, client=3, rounds=[2])
    resumed = federate(experiment, resume=True)
    assert final_vector(resumed).tobytes() == final_vector(whole).tobytes()
    assert resumed.rounds()[-1]["epsilon"] == whole.rounds()[-1]["epsilon"]


def test_examples_may_be_protected_too(quick: Quick, federate: Federate) -> None:
    settings = [*NOISED, "privacy.unit=both", "privacy.noise_multiplier=1"]
    said = federate(quick(*settings)).rounds()[-1]["privacy"]
    assert said["example"]["sampling"] == "Poisson" and said["client"]["accountant"] == "rdp"


def test_clients_that_have_spent_the_least_take_part(quick: Quick, federate: Federate) -> None:
    """So all of nine take part twice in six rounds of three, as the noise was calibrated for."""
    folder = federate(
        quick(
            *(*NOISED, "federation.clients=9", "federation.per_round=3", "federation.rounds=6"),
            *("secure.colluders=0", "privacy.epsilon=20"),
        )
    )
    assert [line["clients"] for line in folder.rounds()] == [3] * 6
    for client in range(9):
        path = simulated_ledger(folder.path / "privacy", client)
        assert len(read_ledger(path).charges) == 2
    assert folder.rounds()[-1]["epsilon"] <= 20


def test_ties_among_clients_are_drawn() -> None:
    pool, spent_steps = np.arange(10), np.array([1, 0, 0, 2, 0, 1, 0, 0, 3, 0])
    draws = [least_spent(pool, spent_steps, 0, number, 4) for number in range(40)]
    assert {client for draw in draws for client in draw} == {1, 2, 4, 6, 7, 9}
    assert least_spent(pool, spent_steps, 0, 1, 7)[:1] in ([0], [1])
    assert all(draw == sorted(draw) for draw in draws) and len({*map(tuple, draws)}) > 5
