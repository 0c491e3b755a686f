"""``fedpeft privacy audit``: attack the private training of a client, or of all clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedpeft.cli.options import AsJson, Overrides, read_experiment
from fedpeft.cli.printing import headline, plain_console, plain_table, print_json
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from simulations.commands.privacy import audit_options as options
from simulations.commands.privacy.audit_clients import TRIALS, audit_run

if TYPE_CHECKING:
    from rich.console import Console

    from fedpeft.attacks.audit import Subject

#: Used without a file: takes half a minute on one core, and detects missing noise or clipping.
_QUICK = (
    "backbone=tiny",
    "task.train_limit=300",
    "task.eval_limit=200",
    "method.name=lora",
    "method.rank=8",
    "method.sites=q,k,v,o,ffn",
    "federation.clients=1",
    "local.batch_size=64",
    "local.lr=1e-4",  # once the model has learned the canaries, their gradients vanish
)
_QUICK_PRIVACY = ("privacy.unit=example", "privacy.delta=1e-5")
_QUICK_EPSILON = "privacy.epsilon=1"
#: With these settings an update is the noisy sum of gradients, which shows the server most. Any
#: further computation on the sum is post-processing and costs no privacy.
_TRANSPARENT = (
    "local.optimizer=sgd",
    "local.momentum=0",
    "local.weight_decay=0",
    "local.schedule=constant",
    "local.warmup=0",
    "local.proximal_mu=0",
    "local.steps=1",
)
_ROUNDS = 50
_VOCABULARY = 1000  # by default no inversion with more candidate tokens: it takes too long


def audit(
    experiment: options.AttackedExperiment = None,
    overrides: Overrides = None,
    canaries: options.Canaries = None,
    rounds: options.Rounds = None,
    guesses: options.Guesses = None,
    confidence: options.Confidence = 0.95,
    inversion: options.Inversion = None,
    unit: options.Unit = None,
    trials: options.Trials = None,
    as_json: AsJson = False,
) -> None:
    """Attack private training, and compare the leak with the claimed epsilon.

    Examples: trains client 0 of the experiment with canaries, each included by a coin, and guesses
    the coins from the task vectors that the server sees (Steinke, Nasr & Jagielski 2023). Then
    tries to recover short texts from updates of one step. Training is always one step of plain SGD
    per round, which shows the server most. Without a file: lora on tiny, 300 examples at one
    client, epsilon 1 at delta 1e-5.

    Clients: plays whole runs of sampling, clipping and noise (of the server, or of the clients of a
    sum under masks), in which canary clients send a worst-case update in all their rounds, and
    guesses from all released sums which canaries exist (Nasr et al. 2023). Nothing is trained;
    --canaries, --guesses and --inversion do not apply. Without a file: 1,000 clients, 20 a round,
    50 rounds, epsilon 1.

    Prints the claimed epsilon, a lower bound of the true one, and for examples the shares of
    recovered tokens.
    A lower bound above the claim refutes the claim (exit code 1); one below it proves nothing.

    Example: fedpeft privacy audit -s privacy.epsilon=4 --rounds 100

    Example: fedpeft privacy audit --unit client -s privacy.mechanism=banded -s privacy.epsilon=4
    """
    if not 0 < confidence < 1:
        raise UserError(f"--confidence {confidence:g}: expected a number in (0, 1)")
    given = overrides or ()
    if (unit or _unit(experiment, given)) == "client":
        if (canaries, guesses, inversion) != (None, None, None):
            raise UserError("--canaries, --guesses, --inversion: are for single examples")
        audit_run(experiment, given, rounds, trials or TRIALS, confidence, as_json)
        return
    if trials is not None:
        raise UserError(f"--trials {trials}: is for --unit client; see --rounds and --canaries")
    rounds = rounds or _ROUNDS
    settings = _settings(experiment, given, rounds)
    subject = _subject(settings, canaries, guesses)
    result = _attack(subject, rounds, confidence, inversion, as_json)
    claim, bound = result["claimed_epsilon"], result["lower_bound"]
    if claim is not None and bound > claim:
        raise RunFailed(
            f"the training is not ({claim:.4g}, {result['delta']:.2g})-private: its epsilon is "
            f"above {bound:.4g} with confidence {confidence:g}"
        )


def _unit(file: Path | None, overrides: Sequence[str]) -> str:
    """Return the unit that an experiment protects, "example" if both or none."""
    chosen = "privacy.unit=client" in [override.replace(" ", "") for override in overrides]
    if not chosen and file is not None:
        chosen = Experiment.read(file, overrides).privacy.unit == "client"
    return "client" if chosen else "example"


def _settings(file: Path | None, overrides: Sequence[str], rounds: int) -> Experiment:
    """Return the experiment with the settings of the attack."""
    quick: list[str] = []
    if file is None:
        given = dict(
            override.replace(" ", "").split("=", 1) for override in overrides if "=" in override
        )
        quick = list(_QUICK)
        if given.get("privacy.unit") != "none":
            quick += _QUICK_PRIVACY
            if "privacy.noise_multiplier" not in given:
                quick.append(_QUICK_EPSILON)
    experiment = read_experiment(file, [*quick, *overrides])
    planned = [f"federation.rounds={rounds}"]
    if experiment.privacy.examples:
        planned.append(f"privacy.participations={rounds}")
    return Experiment.load(experiment.to_toml(), [*_TRANSPARENT, *planned])


def _subject(experiment: Experiment, canaries: int | None, guesses: int | None) -> Subject:
    from clients.data.partitioning import partition
    from fedpeft.attacks.audit import subject_of
    from fedpeft.runtime import runtime_of

    runtime = runtime_of(experiment)
    rows = partition(runtime.task, experiment)[0]
    return subject_of(runtime, rows, canaries, guesses)


def _attack(
    subject: Subject, rounds: int, confidence: float, inversion: bool | None, as_json: bool
) -> dict[str, Any]:
    """Run both attacks and print the result."""
    from rich.progress import Progress

    from fedpeft.attacks.audit import canary_audit, candidate_tokens, inversion_audit

    if inversion is None:
        inversion = len(candidate_tokens(subject.runtime)) <= _VOCABULARY
    console = plain_console(quiet=as_json)
    console.print(_setup(subject, rounds), soft_wrap=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:

        def progress(name: str, steps: int) -> Callable[[], None]:
            if not console.is_terminal:
                console.print(name)
            task = bars.add_task(name, total=steps)
            return lambda: bars.advance(task)

        result = canary_audit(subject, rounds, confidence, progress)
        result["inversion"] = inversion_audit(subject, progress) if inversion else None
    if as_json:
        print_json(result)
    else:
        _print(console, result)
    return result


def _setup(subject: Subject, rounds: int) -> str:
    """Return a description of the attacked training, in one line."""
    experiment, planted = subject.runtime.experiment, subject.planted
    training = "no DP-SGD"
    if subject.plan:
        mechanism, privacy = subject.plan.mechanism, experiment.privacy
        training = (
            f"DP-SGD with noise multiplier {mechanism.noise_multiplier:.4g}, clip "
            f"{privacy.clip:g} ({privacy.clipping}), q {mechanism.sampling_rate:.4g}"
        )
    return headline(
        experiment,
        f"{len(planted.start):,} numbers",
        training,
        f"{rounds} rounds of one step",
        f"{len(planted.included)} canaries ({planted.included.sum()} included) and "
        f"{len(planted.candidates) - len(planted.included)} other examples",
    )


def _print(console: Console, result: dict[str, Any]) -> None:
    claim = result["claimed_epsilon"]
    console.print(
        f"claimed epsilon {'infinite' if claim is None else f'{claim:.4g}'}, empirical lower bound "
        f"{result['lower_bound']:.4g} with confidence {result['confidence']:g}, at delta "
        f"{result['delta']:.2g}: {result['right']} of {result['guesses']} guesses correct",
        soft_wrap=True,
    )
    if claim is not None and result["lower_bound"] <= claim:
        console.print(
            "this attack does not refute the claim; a stronger attack might",
            soft_wrap=True,
        )
    if result["inversion"]:
        _print_inversion(console, result["inversion"])


def _print_inversion(console: Console, inversion: dict[str, Any]) -> None:
    names = {
        "without_dp": "without DP",
        "with_dp": "with DP",
        "usual": "most frequent tokens, no update",
        "random": "random tokens",
    }
    if inversion["with_dp"]:
        noise, clip = inversion["noise_multiplier"], inversion["clip"]
        names["with_dp"] += f", noise {noise:.4g}, clip {clip:g}"
    shares = {"place": "tokens in place", "bag": "tokens in any order", "label": "labels"}
    table = plain_table(
        ("recovered", *shares.values()),
        right=shares.values(),
        title=f"inversion of one step on each of {inversion['victims']} texts: "
        f"{inversion['tokens']} unknown tokens, {inversion['candidates']:,} candidates",
    )
    for key, name in names.items():
        if inversion[key]:
            table.add_row(name, *(f"{inversion[key][share]:.0%}" for share in shares))
    console.print(table)
