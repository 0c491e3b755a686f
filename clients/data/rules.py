"""Rules of a node: it refuses experiments that are too large or have too little privacy."""

from __future__ import annotations

from clients.data.client_data import LocalData
from clients.errors import Refusal, checking_settings
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.contradictions import in_engine
from fedpeft.privacy.accounting import spent
from fedpeft.privacy.plan import client_plan, example_plan
from fedpeft.runtime import Runtime

#: Numbers of stored projections, and of the gradients of a physical batch, that are allowed for
#: each trained number of ``max_vector``: 4 GB at the default. SLaSh with d = 65,536 on RoBERTa-base
#: stores 600 million.
_PER_NUMBER = 20


def require_open(data: LocalData) -> None:
    """Refuse an evaluation that the experiment does not need, or that is not private enough.

    Exact counts are not private, and the server chooses the vector.

    Raises:
        Refusal: the server evaluates, or the owner of the data has set a limit.
    """
    if data.runtime.experiment.federation.evaluation != "clients":
        raise Refusal("federation.evaluation = 'server': clients evaluate nothing in this run")
    if data.max_epsilon is not None:
        raise Refusal(
            "this node limits its epsilon, and evaluation is not private; it trains only "
            "(federation.evaluation = 'server' evaluates elsewhere)"
        )


def require_sums(data: LocalData) -> None:
    """Refuse to send sums of features, where the owner of the data does not allow it.

    They have the exact number of examples of each class.

    Raises:
        Refusal: the owner allows no sums, or shows the number of examples only roughly.
    """
    settings = data.settings
    if settings is None or settings.sends_sums:
        return
    why = "and this node shows only about how many it has (`fedpeft node up --examples`)"
    if not settings.sums:
        why = "and this node sends none (`fedpeft node up --no-sums`)"
    raise Refusal(
        f"head.start = 'sums': sums of features tell how many examples each class has, {why}; it "
        f"takes part from the first round on"
    )


def require_rules(data: LocalData) -> None:
    """Refuse an experiment that breaks a rule of the owner of the data.

    Checked before any training; the ledger accounts for what earlier runs have spent. No rule reads
    the data, except through the number of examples if the operator shows it exact or rounded.

    Raises:
        Refusal: the experiment breaks a rule; the text says which.
        SettingsError: its settings do not fit together, or not the client's number of examples.
    """
    with checking_settings():
        _require_rules(data)


def _require_rules(data: LocalData) -> None:
    if data.settings is None:
        return
    if data.runtime.experiment.adversary.fraction:
        raise Refusal("adversary.fraction: malicious clients are for simulations; leave it out")
    if data.settings.roster and not data.runtime.experiment.federation.secure:
        raise Refusal(
            "federation.secure = false: this node shows its updates only in sums with those of its "
            "roster; start it without `fedpeft node up --roster` for other runs"
        )
    colluders = data.runtime.experiment.secure.colluders
    if data.settings.roster and colluders < data.settings.colluders:
        raise Refusal(
            f"secure.colluders = {colluders}: this node takes part only in sums that protect from "
            f"{data.settings.colluders} (`fedpeft node up --colluders`)"
        )
    _require_weights(data.runtime.experiment, data.settings.weights)
    _require_size(data.runtime, data.settings.max_vector)
    limit = data.max_epsilon
    if limit is None:
        return
    experiment = data.runtime.experiment
    privacy, task = experiment.privacy, experiment.task
    if not (privacy.examples or privacy.charges_clients):
        raise Refusal(
            f"privacy.unit = '{privacy.unit}': this node takes part only with noise of its own, "
            f"for examples or for all of its data, of an epsilon up to {limit:g}"
        )
    if privacy.reproducible:  # the server chose the seed
        raise Refusal(
            "privacy.reproducible = true: this node takes part only with noise that nobody can "
            "draw again"
        )
    for key in ("train_limit", "eval_limit", "validation"):
        if count := getattr(task, key):
            raise Refusal(
                f"task.{key} = {count}: this node limits its epsilon, and trains on all of its "
                f"examples"
            )
    plans = [example_plan(experiment, data.examples)] if privacy.examples else []
    plans += [client_plan(experiment)] if privacy.charges_clients else []
    for plan in plans:
        once = spent([plan.mechanism], data.delta).epsilon
        if once > limit:
            raise Refusal(
                f"one round spends epsilon {once:.4g} (delta {data.delta:g}), and this node's "
                f"limit is {limit:g}; expected a larger privacy.noise_multiplier, or a smaller "
                f"privacy.epsilon"
            )


def _require_weights(experiment: Experiment, weights: str) -> None:
    """Refuse an experiment that does not work with the node's form of the frozen weights."""
    held = experiment.engine.model_copy(update={"weights": weights} if weights else {})
    for problem in in_engine(held, experiment.method):
        raise Refusal(f"{problem} (this node: `fedpeft node up --weights {weights}`)")


def _require_size(runtime: Runtime, most: int) -> None:
    """Refuse a task vector, gradients or stored projections that would exhaust the memory."""
    size, privacy = runtime.vector_size, runtime.experiment.privacy
    gradients = size * privacy.physical_batch if privacy.examples else 0
    directions = size * runtime.experiment.local.perturbations
    for count, allowed, name in (
        (size, most, "trained numbers"),
        (gradients, most * _PER_NUMBER, "numbers in the gradients of privacy.physical_batch"),
        (directions, most * _PER_NUMBER, "numbers in the directions of local.perturbations"),
        (runtime.projected, most * _PER_NUMBER, "numbers of projections"),
    ):
        if count > allowed:
            raise Refusal(
                f"method '{runtime.experiment.method.name}' has {count} {name}, and this node "
                f"allows {allowed} (`fedpeft node up --max-vector`)"
            )
