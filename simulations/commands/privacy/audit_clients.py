"""``fedpeft privacy audit --unit client``: attack the noise that protects whole clients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from fedpeft.cli.options import read_experiment
from fedpeft.cli.printing import plain_console, print_json
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.plan import participations
from fedpeft.updates import sums

if TYPE_CHECKING:
    from fedpeft.attacks.canary_clients import Population, PrivateRounds

#: Used without a file: takes about a minute on one core.
_QUICK = (
    "backbone=tiny",
    "federation.clients=1000",
    "federation.per_round=20",
    "federation.rounds=50",
    "privacy.unit=client",
)
_QUICK_EPSILON = "privacy.epsilon=1"
TRIALS = 20_000


def audit_run(
    file: Path | None,
    overrides: Sequence[str],
    rounds: int | None,
    trials: int,
    confidence: float,
    as_json: bool,
) -> None:
    """Audit the clients' privacy of an experiment, and print the result.

    Args:
        file: the experiment; None = a quick one.
        overrides: of its keys.
        rounds: of a run, instead of federation.rounds.
        trials: canaries over all runs, at least.
        confidence: of the bounds, in (0, 1).
        as_json: whether to print JSON.

    Raises:
        UserError: neither the server nor the clients of a sum add noise for clients.
        RunFailed: a bound exceeds the claim.
    """
    from rich.progress import Progress

    from fedpeft.attacks.canary_clients import audit_clients

    experiment = _settings(file, overrides, rounds)
    population = _population(experiment)
    runs = population.runs(trials)
    console = plain_console(quiet=as_json)
    console.print(_setup(experiment, population, runs), soft_wrap=True)
    with (
        TemporaryDirectory(prefix="fedpeft-audit-") as folder,
        Progress(console=console, transient=True, disable=not console.is_terminal) as bars,
    ):
        task = bars.add_task(f"playing {runs} runs", total=runs)
        result = audit_clients(
            lambda run: _rounds(experiment, Path(folder), run),
            population,
            trials,
            confidence,
            lambda: bars.advance(task),
        )
    if as_json:
        print_json(result)
    else:
        console.print(_summary(result), soft_wrap=True)
    _require(result)


def _settings(file: Path | None, overrides: Sequence[str], rounds: int | None) -> Experiment:
    quick: list[str] = []
    if file is None:
        quick = list(_QUICK)
        keys = {override.split("=", 1)[0].strip() for override in overrides}
        if not keys & {"privacy.noise_multiplier", "privacy.client_noise_multiplier"}:
            quick.append(_QUICK_EPSILON)
    # The audit must not spend the budget of a real ledger.
    planned = ["privacy.ledger=", *([f"federation.rounds={rounds}"] if rounds else [])]
    # Nothing is trained, so the backbone may be elsewhere.
    experiment = read_experiment(file, [*quick, *overrides, *planned], elsewhere=True)
    privacy = experiment.privacy
    if not (privacy.central or privacy.distributed):
        raise UserError(
            f"privacy.unit = '{privacy.unit}', privacy.client_noise = '{privacy.client_noise}': "
            f"--unit client audits noise of the server, or of clients in a sum; expected unit "
            f"'client' or 'both' and client_noise 'server' or 'secure'"
        )
    return experiment


def _population(experiment: Experiment) -> Population:
    """Return the numbers of a run: with noise in sums, of the smallest sum of honest clients."""
    from fedpeft.attacks.canary_clients import Population

    federation = experiment.federation
    if experiment.privacy.distributed:
        honest = sums.honest(experiment)
        return Population(honest, honest, participations(experiment), experiment.seed)
    asked = experiment.clients_per_round
    return Population(federation.clients, asked, federation.rounds, experiment.seed)


def _rounds(experiment: Experiment, folder: Path, run: int) -> PrivateRounds:
    """Return the protection of a new run, with an order and seeded noise of its own.

    A further mechanism is chosen here: whatever has the interface of ``PrivateRounds``.
    """
    from fedpeft.attacks.summed_rounds import SummedRounds
    from server.privacy.central_privacy import CentralPrivacy

    again = Experiment.load(experiment.to_toml(), [f"seed={experiment.seed + run}"])
    if experiment.privacy.distributed:
        return SummedRounds(again)
    rounds = CentralPrivacy.of(again, folder / str(run))
    assert rounds, "checked in _settings"
    return rounds


def _setup(experiment: Experiment, population: Population, runs: int) -> str:
    """Return a description of the attacked runs, in one line."""
    kind: str = experiment.privacy.mechanism
    clients = f"{population.clients:,} clients"
    among = f"for {clients}, {population.expected:,} a round"
    if experiment.privacy.distributed:
        kind, among = "Skellam", f"of {clients}, the honest ones of the smallest sum"
    return (
        f"{kind} noise {among}, {population.rounds:,} rounds; {runs:,} runs with "
        f"{population.canaries:,} canary clients, half of them included"
    )


def _summary(result: dict[str, Any]) -> str:
    claim, tight = result["claimed_epsilon"], result["gaussian_bound"]
    lines = [
        f"claimed epsilon {'infinite' if claim is None else f'{claim:.4g}'}, empirical lower bound "
        f"{result['lower_bound']:.4g} with confidence {result['confidence']:g}, at delta "
        f"{result['delta']:.2g}: {result['trials']:,} trials"
    ]
    if tight is not None:
        lines.append(f"lower bound {tight:.4g} if the noise is Gaussian")
    if claim is not None and _largest(result) <= claim:
        lines.append("this attack does not refute the claim; a stronger attack might")
    return "\n".join(lines)


def _largest(result: dict[str, Any]) -> float:
    return float(max(result["lower_bound"], result["gaussian_bound"] or 0.0))


def _require(result: dict[str, Any]) -> None:
    claim, bound = result["claimed_epsilon"], _largest(result)
    if claim is not None and bound > claim:
        raise RunFailed(
            f"the noise does not give ({claim:.4g}, {result['delta']:.2g})-privacy for clients: "
            f"epsilon is above {bound:.4g} with confidence {result['confidence']:g}"
        )
