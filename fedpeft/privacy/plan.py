"""What an experiment's ``[privacy]`` means for a client with n examples."""

from __future__ import annotations

from dataclasses import dataclass

from fedpeft.config import Experiment
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, calibrate


@dataclass(frozen=True)
class Plan:
    """A mechanism as it runs in every round, with the delta and the limit of its epsilon."""

    mechanism: Mechanism
    delta: float
    budget: float | None


def participations(experiment: Experiment) -> int:
    """Return in how many rounds a client is planned to take part, at least one."""
    federation = experiment.federation
    asked = federation.rounds * experiment.clients_per_round
    return experiment.privacy.participations or -(-asked // federation.clients)


def default_delta(count: int) -> float:
    """Return 1 / n^1.1, the delta of ``count`` examples or clients where none is given."""
    return count**-1.1


def example_delta(experiment: Experiment, examples: int) -> float:
    """Return the delta of a client with so many examples.

    Raises:
        UserError: it is not below 1 / n, or a batch is larger than the client's data.
    """
    privacy, local = experiment.privacy, experiment.local
    if local.batch_size > examples:
        raise UserError(
            f"local.batch_size = {local.batch_size}: a client has only {examples} examples to "
            f"sample from; expected at most that (partition.min_examples fills clients up)"
        )
    delta = default_delta(examples) if privacy.delta is None else privacy.delta
    if delta * examples >= 1:
        raise UserError(
            f"privacy.delta = {delta:g}: expected less than 1 / {examples}, the number of a "
            f"client's examples"
        )
    return delta


def example_plan(experiment: Experiment, examples: int) -> Plan:
    """Return the DP-SGD of a client with so many examples.

    Raises:
        UserError: see ``example_delta``.
    """
    privacy, local = experiment.privacy, experiment.local
    delta = example_delta(experiment, examples)
    rate = local.batch_size / examples
    steps = local.steps or max(1, local.epochs * examples // local.batch_size)
    sigma = privacy.noise_multiplier
    if sigma is None:
        assert privacy.epsilon is not None, "refused by fedpeft.contradictions"
        sigma = calibrate(privacy.epsilon, delta, rate, steps * participations(experiment))
    return Plan(Mechanism(sigma, rate, steps), delta, privacy.budget or privacy.epsilon)


def client_plan(experiment: Experiment) -> Plan:
    """Return the Gaussian mechanism by which each client hides its own update (local DP)."""
    epsilon, sigma, given = experiment.privacy.of_clients()
    delta = client_delta(experiment.federation.clients, given)
    if sigma is None:
        assert epsilon is not None, "refused by fedpeft.contradictions"
        sigma = calibrate(epsilon, delta, 1.0, participations(experiment))
    return Plan(Mechanism(sigma, 1.0, 1), delta, experiment.privacy.budget or epsilon)


def client_delta(clients: int, given: float | None) -> float:
    """Return the delta at the level of clients.

    Raises:
        UserError: not below 1 / clients.
    """
    if clients < 2:
        raise UserError(
            f"federation.clients = {clients}: nobody can hide a client among itself; expected at "
            f"least 2 with privacy.unit = 'client' or 'both'"
        )
    delta = default_delta(clients) if given is None else given
    if delta * clients >= 1:
        raise UserError(
            f"privacy.client_delta = {delta:g}: expected less than 1 / federation.clients, "
            f"which is 1 / {clients}"
        )
    return delta
