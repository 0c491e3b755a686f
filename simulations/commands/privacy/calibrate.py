"""``fedpeft privacy calibrate`` and ``privacy epsilon``: the noise for an epsilon, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from fedpeft.cli.options import AsJson
from fedpeft.cli.printing import print_json
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, Spent, spent
from fedpeft.privacy.accounting import calibrate as smallest_noise
from fedpeft.privacy.plan import default_delta

_PAPER_ERROR = 0.1  # eps_error of the accountant in the paper

_Delta = Annotated[float | None, typer.Option(help="Below 1 / examples; default 1 / examples^1.1.")]
_Examples = Annotated[int, typer.Option(min=1, help="Number of training examples of one client.")]
_Batch = Annotated[int, typer.Option(min=1, help="Expected size of a Poisson-sampled batch.")]
_Epochs = Annotated[int | None, typer.Option(min=1, help="Epochs over all rounds.")]
_Steps = Annotated[int | None, typer.Option(min=1, help="Steps over all rounds, or --epochs.")]
_Convention = Annotated[
    Literal["fedpeft", "paper"],
    typer.Option(
        help="fedpeft: an error of PRV of 0.5 % of epsilon, and floor(epochs * examples / batch) "
        "steps. paper: an error of 0.1, and epochs * floor(examples / batch) steps."
    ),
]


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The largest epsilon allowed.")],
    examples: _Examples,
    batch: _Batch,
    delta: _Delta = None,
    epochs: _Epochs = None,
    steps: _Steps = None,
    convention: _Convention = "fedpeft",
    mechanism: Annotated[
        Literal["gaussian", "banded", "blt", "skellam"],
        typer.Option(
            help="As privacy.mechanism, or skellam for privacy.client_noise = 'secure'. Other than "
            "gaussian: of whole clients, where --examples is the number of clients, --batch that "
            "of a round, and --steps the rounds."
        ),
    ] = "gaussian",
    separation: Annotated[
        int, typer.Option(min=0, help="As privacy.separation, for banded and blt.")
    ] = 0,
    colluders: Annotated[int, typer.Option(min=0, help="As secure.colluders, for skellam.")] = 1,
    threshold: Annotated[int, typer.Option(min=0, help="As secure.threshold, for skellam.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find the smallest noise multiplier that keeps DP-SGD within an epsilon.

    Prints the noise multiplier, and the epsilon, delta and mechanism that it gives. For banded and
    blt, also the noise of a round and of the sums of rounds, in clips, beside that of Poisson
    DP-SGD with the same epsilon. For skellam, also the noise of a client and of the mean, beside
    that of a trusted server whose sample is no secret.

    Example: fedpeft privacy calibrate --epsilon 3 --examples 6734 --batch 64 --epochs 20
    """
    plan = _plan(examples, batch, delta, epochs, steps, convention)
    if mechanism == "skellam" and not separation:
        from simulations.commands.privacy.distributed import show_distributed

        show_distributed(
            *(epsilon, plan.delta, examples, batch, plan.steps, colluders, threshold, as_json)
        )
        return
    if mechanism in ("banded", "blt"):
        from simulations.commands.privacy.matrix import show_matrix

        rounds, error = plan.steps, plan.error
        show_matrix(
            mechanism, epsilon, plan.delta, examples, batch, rounds, separation, error, as_json
        )
        return
    if separation:
        raise UserError(f"--separation {separation}: is for --mechanism banded and blt")
    sigma = smallest_noise(epsilon, plan.delta, plan.rate, plan.steps, plan.error)
    _show(plan, sigma, as_json)


def epsilon(
    noise_multiplier: Annotated[float, typer.Option(help="Noise over clip, above 0.")],
    examples: _Examples,
    batch: _Batch,
    delta: _Delta = None,
    epochs: _Epochs = None,
    steps: _Steps = None,
    convention: _Convention = "fedpeft",
    as_json: AsJson = False,
) -> None:
    """Find the epsilon of DP-SGD with a noise multiplier.

    Prints the epsilon with its delta and mechanism.

    Example: fedpeft privacy epsilon --noise-multiplier 1 --examples 6734 --batch 64 --steps 2000
    """
    if not 0 < noise_multiplier < math.inf:
        raise UserError(
            f"--noise-multiplier {noise_multiplier:g}: expected a number above 0; epsilon is "
            f"infinite without noise"
        )
    _show(_plan(examples, batch, delta, epochs, steps, convention), noise_multiplier, as_json)


@dataclass(frozen=True)
class _Plan:
    """DP-SGD without its noise; ``error`` is that of the accountant, None = the default."""

    examples: int
    delta: float
    rate: float
    steps: int
    error: float | None


def _plan(
    examples: int,
    batch: int,
    delta: float | None,
    epochs: int | None,
    steps: int | None,
    convention: str,
) -> _Plan:
    """Return the plan; epochs become steps as in ``fedpeft.privacy.plan`` or as in the paper.

    Raises:
        UserError: a batch is larger than the data, delta is not in (0, 1 / examples), or not
            exactly one of epochs and steps is given.
    """
    if batch > examples:
        raise UserError(f"--batch {batch}: expected at most --examples, which is {examples}")
    if (epochs is None) == (steps is None):
        given = "none" if epochs is None else "both"
        raise UserError(f"expected exactly one of --epochs and --steps, got {given}")
    delta = default_delta(examples) if delta is None else delta
    if not 0 < delta * examples < 1:
        raise UserError(
            f"--delta {delta:g}: expected a number above 0 and below 1 / --examples, which is "
            f"{1 / examples:.3g}"
        )
    paper = convention == "paper"
    if epochs is not None:
        steps = epochs * (examples // batch) if paper else epochs * examples // batch
    assert steps is not None, "one of the two is given"
    return _Plan(examples, delta, batch / examples, steps, _PAPER_ERROR if paper else None)


def _show(plan: _Plan, sigma: float, as_json: bool) -> None:
    total = spent([Mechanism(sigma, plan.rate, plan.steps)], plan.delta, plan.error)
    if not math.isfinite(total.epsilon):
        raise UserError(f"--noise-multiplier {sigma:g}: no finite epsilon; choose a larger one")
    if as_json:
        print_json(
            {
                "noise_multiplier": sigma,
                "epsilon": total.epsilon,
                "epsilon_error": total.epsilon_error,
                "accountant": total.accountant,
                "steps": plan.steps,
                "sampling_rate": plan.rate,
            }
        )
    else:
        print(_summary(plan, sigma, total))


def _summary(plan: _Plan, sigma: float, total: Spent) -> str:
    error = total.epsilon_error
    above = f", {error:.2g} above its estimate" if error else ""
    return "\n".join(
        [
            f"noise multiplier  {sigma:g} (standard deviation of the noise over the clip)",
            f"epsilon           {total.epsilon:.4g} at most ({total.accountant.upper()}{above})",
            f"delta             {plan.delta:.3g}",
            f"mechanism         DP-SGD: Poisson-subsampled Gaussian, {plan.steps:,} steps that "
            f"sample each example with probability {plan.rate:.4g}",
            f"unit              one of a client's {plan.examples:,} examples",
            "neighbors         data sets that differ by one example (add or remove)",
        ]
    )
