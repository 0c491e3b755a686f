"""``fedpeft privacy audit``: attacks on our own training."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedpeft.cli.options import AsJson, Overrides
from fedpeft.config import Experiment
from fedpeft.errors import RunFailed, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fedpeft.attacks.subject import Subject

#: Without a file: half a minute on one core, and strong enough to see noise or clipping missing.
_QUICK = (
    "backbone=tiny",
    "task.train_limit=300",
    "task.eval_limit=200",
    "method.name=lora",
    "method.rank=8",
    "method.sites=q,k,v,o,ffn",
    "federation.clients=1",
    "local.batch_size=64",
    "local.lr=1e-4",  # a model that has learned the canaries has no gradients left to see
)
_QUICK_PRIVACY = ("privacy.unit=example", "privacy.delta=1e-5")
_QUICK_EPSILON = "privacy.epsilon=1"
#: What the server can see through: an update is the noisy sum of gradients. Whatever else an
#: optimiser does with that sum is post-processing and costs no privacy.
_SEEN_THROUGH = (
    "local.optimizer=sgd",
    "local.momentum=0",
    "local.weight_decay=0",
    "local.schedule=constant",
    "local.warmup=0",
    "local.proximal_mu=0",
    "local.steps=1",
)
_VOCABULARY = 1000  # with more candidate tokens inversion takes too long, unless asked for


def audit(
    experiment: Annotated[
        Path | None, typer.Argument(help="Experiment file (TOML); none = a quick one on tiny.")
    ] = None,
    overrides: Overrides = None,
    canaries: Annotated[
        int | None, typer.Option(help="Default 200, at most two thirds of the examples.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of one step that are attacked.")] = 50,
    guesses: Annotated[
        int | None,
        typer.Option(
            help="Half of them 'in', half 'out'; default half the canaries. Choose before you "
            "look: picking the best of several afterwards voids the confidence."
        ),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound, in (0, 1).")] = 0.95,
    inversion: Annotated[
        bool | None,
        typer.Option(
            help="Also try to read texts off single updates; default: if the dev texts have at "
            "most 1,000 different tokens."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Attack one client's training, and compare what leaks with the epsilon that is claimed.

    Trains client 0 of the experiment once, with canaries that a coin each puts in or leaves out,
    and guesses the coins from the task vectors that the server sees (Steinke, Nasr & Jagielski
    2023). Then tries to read short texts off updates of one step. The optimiser is plain SGD of
    one step a round, whatever the experiment says: that shows the server most. Without a file:
    lora on tiny, 300 examples at one client, epsilon 1 at delta 1e-5.

    A lower bound above the claim refutes it (exit code 1); one below proves nothing.

    Example: fedpeft privacy audit -s privacy.epsilon=4 --rounds 100
    """
    if not 0 < confidence < 1:
        raise UserError(f"--confidence {confidence:g}: expected more than 0 and less than 1")
    settings = _settings(experiment, overrides or (), rounds)
    subject = _subject(settings, canaries, guesses)
    result = _attack(subject, rounds, confidence, inversion, as_json)
    claim, bound = result["claimed_epsilon"], result["lower_bound"]
    if claim is not None and bound > claim:
        raise RunFailed(
            f"the training is not ({claim:.4g}, {result['delta']:.2g})-private: its epsilon is "
            f"above {bound:.4g} with confidence {confidence:g}"
        )


def _settings(file: Path | None, overrides: Sequence[str], rounds: int) -> Experiment:
    """Return the experiment as it is attacked."""
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
    asked = Experiment.read(file, [*quick, *overrides])
    planned = [f"federation.rounds={rounds}"]
    if asked.privacy.examples:
        planned.append(f"privacy.participations={rounds}")
    return Experiment.load(asked.to_toml(), [*_SEEN_THROUGH, *planned])


def _subject(experiment: Experiment, canaries: int | None, guesses: int | None) -> Subject:
    from clients.partitioning import partition
    from fedpeft.attacks.subject import subject_of
    from fedpeft.runtime import runtime_of

    runtime = runtime_of(experiment.to_toml())
    rows = partition(runtime.task, experiment)[0]
    return subject_of(runtime, rows, canaries, guesses)


def _attack(
    subject: Subject, rounds: int, confidence: float, inversion: bool | None, as_json: bool
) -> dict[str, Any]:
    """Run both attacks, and print what they found."""
    from rich.console import Console
    from rich.progress import Progress

    from fedpeft.attacks.subject import canary_audit, candidate_tokens, inversion_audit

    if inversion is None:
        inversion = len(candidate_tokens(subject.runtime)) <= _VOCABULARY
    console = Console(highlight=False, markup=False, quiet=as_json)
    console.print(_what(subject, rounds), soft_wrap=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:

        def progress(name: str, steps: int) -> Callable[[], None]:
            if not console.is_terminal:
                console.print(name)
            task = bars.add_task(name, total=steps)
            return lambda: bars.advance(task)

        result = canary_audit(subject, rounds, confidence, progress)
        result["inversion"] = inversion_audit(subject, progress) if inversion else None
    if as_json:
        print(json.dumps(result, indent=2, allow_nan=False))
    else:
        _print(console, result)
    return result


def _what(subject: Subject, rounds: int) -> str:
    """Return what is attacked, in one line."""
    experiment, planted = subject.runtime.experiment, subject.planted
    if subject.plan:
        mechanism, privacy = subject.plan.mechanism, experiment.privacy
        how = (
            f"DP-SGD with noise multiplier {mechanism.noise_multiplier:.4g}, clip "
            f"{privacy.clip:g} ({privacy.clipping}), q {mechanism.sampling_rate:.4g}"
        )
    else:
        how = "no DP-SGD"
    return (
        f"{experiment.task.name} · {experiment.method.name} on {experiment.backbone} · "
        f"{len(planted.start):,} numbers · {how} · {rounds} rounds of one step · "
        f"{len(planted.included)} canaries, {planted.included.sum()} of them in, and "
        f"{len(planted.candidates) - len(planted.included)} other examples"
    )


def _print(console: Console, result: dict[str, Any]) -> None:
    claim = result["claimed_epsilon"]
    console.print(
        f"claimed epsilon {'infinite' if claim is None else f'{claim:.4g}'}, empirical lower bound "
        f"{result['lower_bound']:.4g} with confidence {result['confidence']:g}, at delta "
        f"{result['delta']:.2g}: {result['right']} of {result['guesses']} guesses right",
        soft_wrap=True,
    )
    if claim is not None and result["lower_bound"] <= claim:
        console.print(
            "the claim stands; that this attack finds less does not show that no other finds more",
            soft_wrap=True,
        )
    if result["inversion"]:
        _print_inversion(console, result["inversion"])


def _print_inversion(console: Console, found: dict[str, Any]) -> None:
    from rich.table import Table

    names = {
        "without_dp": "without DP",
        "with_dp": "with DP",
        "usual": "usual tokens, no update",
        "random": "random tokens",
    }
    if found["with_dp"]:
        names["with_dp"] += f", noise {found['noise_multiplier']:.4g}, clip {found['clip']:g}"
    table = Table(
        box=None,
        padding=(0, 2, 0, 0),
        title=f"inversion of one step on each of {found['victims']} texts: {found['tokens']} "
        f"tokens to find, {found['candidates']:,} candidates",
        title_justify="left",
    )
    table.add_column("")
    for column in ("right token and place", "right token", "right label"):
        table.add_column(column, justify="right")
    for key, name in names.items():
        if found[key]:
            table.add_row(
                name, *(f"{found[key][share]:.0%}" for share in ("place", "bag", "label"))
            )
    console.print(table)
