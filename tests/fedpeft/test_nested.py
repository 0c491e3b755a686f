"""Clients with a prefix of z: which they are, what they send, and what they train."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.methods.slash import Slash
from fedpeft.model import TaskModel
from fedpeft.modifications import Modification
from fedpeft.nested import fixed_numbers, is_small
from fedpeft.parameters import TaskParameters
from fedpeft.privacy.accounting import Mechanism
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.privacy.noise import SeededNoise
from fedpeft.projection.operators import Operator
from fedpeft.randomness import When, generator
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import train_cohort
from fedpeft.updates.transfer import decode_down, decode_up, encode_down, encode_up

Quick = Callable[..., Experiment]
SIZE, Z, PREFIX = 82, 16, 4  # numbers in all, of z, and of its prefix
NESTED = [f"nested.d={PREFIX}", "federation.clients=4", "engine.dtype=float64"]


class Prefix(Slash):
    """SLaSh that trains the first numbers of z; the others are constants."""

    tail: np.ndarray

    def parameters(self) -> dict[str, tuple[int, ...]]:
        return {"z": (PREFIX,)}

    def realise(
        self, parameters: Mapping[str, Tensor], projections: Sequence[Operator]
    ) -> list[Modification]:
        z = parameters["z"]
        tail = torch.from_numpy(self.tail).expand(len(z), -1)
        return super().realise({"z": torch.cat([z, tail], 1)}, projections)


def small_clients(experiment: Experiment) -> list[int]:
    clients = range(experiment.federation.clients)
    return [client for client in clients if is_small(experiment, client)]


def test_the_seed_says_which_clients_are_small(quick: Quick) -> None:
    def small(*settings: str) -> list[int]:
        return small_clients(quick("nested.d=4", "federation.clients=40", *settings))

    assert len(small()) == 20 and small() == small()
    assert small() != small("seed=1")
    assert len(small("nested.share=0.25")) == 10
    assert small("nested.d=0") == []


def test_small_clients_send_and_get_the_prefix_and_the_head(quick: Quick) -> None:
    experiment = quick(*NESTED, "wire.up=float64", "wire.down=float64")
    runtime, vector = runtime_of(experiment), np.arange(SIZE, dtype=np.float64)
    client, initial = small_clients(experiment)[0], runtime.parameters.initial(0)
    down = encode_down(runtime, 1, vector, small=True)
    assert np.frombuffer(down).tolist() == [*range(PREFIX), *range(Z, SIZE)]
    received = decode_down(runtime, 1, down, small=True)
    expected = np.concatenate([vector[:PREFIX], initial[PREFIX:Z], vector[Z:]])
    assert (received == expected).all()
    up = encode_up(runtime, 1, client, received, received + 1)
    assert (np.frombuffer(up) == np.delete(received, range(PREFIX, Z)) + 1).all()
    arrived = decode_up(runtime, 1, client, received, up)
    assert (arrived[PREFIX:Z] == received[PREFIX:Z]).all() and arrived[0] == received[0] + 1


def private(client: int) -> DPSGD:
    noise = SeededNoise(generator(5, "test-noise", 1, client))
    return DPSGD(Mechanism(0.0, 1.0, 3), 0.01, "flat", 8, noise)


@pytest.mark.parametrize("dp", [False, True], ids=["", "DP-SGD"])
@pytest.mark.parametrize(
    "settings",
    [
        ["local.weight_decay=0.1"],
        ["local.proximal_mu=0.5", "local.max_grad_norm=0.01"],
        ["local.optimizer=sgd", "local.momentum=0.9", "local.lr=0.1", "local.max_grad_norm=0.01"],
    ],
    ids=["decay", "proximal", "sgd"],
)
def test_a_small_client_trains_as_if_the_rest_of_z_were_constant(
    quick: Quick, settings: list[str], dp: bool
) -> None:
    """The oracle's gradients, norms and optimizer know only the numbers that the client holds."""
    experiment = quick(*NESTED, *settings, "local.epochs=2", "task.train_limit=120")
    runtime, when = runtime_of(experiment), When(0, 1, 1)
    texts = [runtime.train.select(np.arange(k, 120, 7)[: 8 + k]) for k in range(4)]
    start, clients = runtime.parameters.initial(0), list(range(4))
    start = start + generator(0, "test").normal(size=SIZE)
    dpsgd = [private(client) for client in clients] if dp else None
    fixed = fixed_numbers(runtime.parameters, experiment, clients)
    trained = train_cohort(
        runtime.model, start, texts, clients, experiment.local, when, dpsgd, fixed
    )
    oracle = prefix_model(runtime, start[PREFIX:Z])
    for client in clients:
        small, own = is_small(experiment, client), [private(client)] if dp else None
        model = oracle if small else runtime.model
        begin = np.delete(start, range(PREFIX, Z)) if small else start
        result = train_cohort(model, begin, [texts[client]], [client], experiment.local, when, own)
        expected = result.vectors[0]
        if small:
            expected = np.concatenate([expected[:PREFIX], start[PREFIX:Z], expected[PREFIX:]])
        assert (expected != start)[:PREFIX].all()
        np.testing.assert_allclose(trained.vectors[client], expected, rtol=0, atol=1e-9)


def prefix_model(runtime: Runtime, tail: np.ndarray) -> TaskModel:
    parameters = runtime.parameters
    method = Prefix(runtime.experiment.method, parameters.method.shape, runtime.experiment.seed)
    method.tail = tail
    return TaskModel(runtime.backbone, TaskParameters(method, parameters.head, "float64"))


def test_without_small_clients_nothing_is_fixed(quick: Quick) -> None:
    experiment = quick(*NESTED)
    large = [client for client in range(4) if not is_small(experiment, client)]
    assert fixed_numbers(runtime_of(experiment).parameters, experiment, large) is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["method.name=bitfit"], "nested.d = 4: expected a method with a shared vector z"),
        (["method.d=4"], "nested.d = 4: expected less than method.d = 4"),
        (
            ["method.d=16", "federation.personal=z", "federation.evaluation=clients"],
            "expected a method with a shared vector z",
        ),
    ],
)
def test_methods_without_a_longer_z_are_refused(settings: list[str], words: str) -> None:
    experiment = Experiment.load("", ["backbone=tiny", "task.train_limit=8", *NESTED, *settings])
    with pytest.raises(UserError, match=words):
        _ = runtime_of(experiment).parameters
