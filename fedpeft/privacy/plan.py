"""The mechanism, delta and budget that an experiment's ``[privacy]`` gives a client."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.accounting import Distribution, Mechanism, calibrate
from fedpeft.privacy.factorization import Factorization, Limits


@dataclass(frozen=True)
class Plan:
    """The mechanism of one round, the delta of its epsilon, and the largest epsilon allowed.

    With a ``factorization`` of the noise, the mechanism is that of all rounds together.
    """

    mechanism: Mechanism
    delta: float
    budget: float | None
    factorization: Factorization | None = None


def participations(experiment: Experiment) -> int:
    """Return the number of rounds that a client is planned to train in, at least 1."""
    clients = experiment.federation.clients
    return experiment.privacy.participations or -(-experiment.trainings // clients)


def limits(experiment: Experiment) -> Limits:
    """Return the limits of a client's participation with ``server.privacy.schedule``."""
    federation, asked = experiment.federation, experiment.clients_per_round
    return participation(
        federation.clients, asked, federation.rounds, experiment.privacy.separation
    )


def participation(clients: int, per_round: int, rounds: int, separation: int = 0) -> Limits:
    """Return the limits of a client's participation.

    If all clients take turns, rounds are at least clients // per_round apart, the default of
    ``separation``, and no client takes part more than ceil(rounds * per_round / clients) times.
    """
    most = -(-rounds * per_round // clients)
    return Limits(rounds, separation or clients // per_round, most)


def default_delta(count: int) -> float:
    """Return 1 / n^1.1, the default delta of n = ``count`` examples or clients."""
    return count**-1.1


def example_delta(experiment: Experiment, examples: int) -> float:
    """Return the delta of a client with n = ``examples`` examples.

    Raises:
        UserError: delta is not below 1 / n, or a batch is larger than the client's data.
    """
    privacy, local = experiment.privacy, experiment.local
    if local.batch_size > examples:
        raise UserError(
            f"local.batch_size = {local.batch_size}: expected at most {examples}, the number of a "
            f"client's examples; partition.min_examples sets the least number of them"
        )
    delta = default_delta(examples) if privacy.delta is None else privacy.delta
    if delta * examples >= 1:
        raise UserError(
            f"privacy.delta = {delta:g}: expected less than 1 / {examples}, the number of a "
            f"client's examples"
        )
    return delta


def example_plan(experiment: Experiment, examples: int) -> Plan:
    """Return the DP-SGD of a client with n = ``examples`` examples.

    Raises:
        UserError: see ``example_delta``.
    """
    privacy, local = experiment.privacy, experiment.local
    delta = example_delta(experiment, examples)
    rate = local.batch_size / examples
    steps = local.steps or max(1, local.epochs * examples // local.batch_size)
    sigma = privacy.noise_multiplier
    if sigma is None:
        assert privacy.epsilon is not None, "refused by fedpeft.experiment.contradictions"
        sigma = calibrate(privacy.epsilon, delta, rate, steps * participations(experiment))
    return Plan(Mechanism(sigma, rate, steps), delta, privacy.budget or privacy.epsilon)


def client_plan(experiment: Experiment) -> Plan:
    """Return the mechanism of one round that a client's ledger is charged for.

    It is the Gaussian mechanism that the client applies to its update (local DP), or the Skellam
    mechanism that it applies together with the other clients of a sum.
    """
    epsilon, sigma, given = experiment.privacy.of_clients()
    delta = client_delta(experiment.federation.clients, given)
    noise: Distribution = "skellam" if experiment.privacy.distributed else "gaussian"
    if sigma is None:
        assert epsilon is not None, "refused by fedpeft.experiment.contradictions"
        sigma = calibrate(epsilon, delta, 1.0, participations(experiment), noise=noise)
    return Plan(Mechanism(sigma, 1.0, 1, noise), delta, experiment.privacy.budget or epsilon)


def client_delta(clients: int, given: float | None) -> float:
    """Return the delta of privacy for whole clients.

    Raises:
        UserError: there are fewer than 2 clients, or delta is not below 1 / clients.
    """
    if clients < 2:
        raise UserError(
            f"federation.clients = {clients}: privacy.unit = 'client' or 'both' needs at least 2 "
            f"clients"
        )
    delta = default_delta(clients) if given is None else given
    if delta * clients >= 1:
        raise UserError(
            f"privacy.client_delta = {delta:g}: expected less than 1 / federation.clients, "
            f"which is 1 / {clients}"
        )
    return delta
