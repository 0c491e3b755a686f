"""``fedpeft privacy calibrate`` and ``fedpeft privacy epsilon``: from epsilon to noise and back."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import typer

from fedpeft.cli.options import AsJson
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, Spent, spent
from fedpeft.privacy.accounting import calibrate as least_noise
from fedpeft.privacy.plan import default_delta

_PAPER_ERROR = 0.1  # eps_error of the paper's accountant

_Delta = Annotated[float | None, typer.Option(help="Below 1 / examples; default 1 / examples^1.1.")]
_Examples = Annotated[int, typer.Option(min=1, help="Training examples of one client.")]
_Batch = Annotated[int, typer.Option(min=1, help="Expected size of a Poisson-sampled batch.")]
_Epochs = Annotated[int | None, typer.Option(min=1, help="Over all rounds together.")]
_Steps = Annotated[int | None, typer.Option(min=1, help="Over all rounds; instead of --epochs.")]
_Convention = Annotated[
    Literal["fedpeft", "paper"],
    typer.Option(
        help="paper: the PRV's error is 0.1 (here: 0.5 % of epsilon), and an epoch has "
        "floor(examples / batch) steps (here: all epochs floor(epochs * examples / batch))."
    ),
]


def calibrate(
    epsilon: Annotated[float, typer.Option(help="The most that may be spent.")],
    examples: _Examples,
    batch: _Batch,
    delta: _Delta = None,
    epochs: _Epochs = None,
    steps: _Steps = None,
    convention: _Convention = "fedpeft",
    as_json: AsJson = False,
) -> None:
    """Find the least noise that keeps DP-SGD within an epsilon.

    Example: fedpeft privacy calibrate --epsilon 3 --examples 6734 --batch 64 --epochs 20
    """
    plan = _plan(examples, batch, delta, epochs, steps, convention)
    sigma = least_noise(epsilon, plan.delta, plan.rate, plan.steps, plan.error)
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
    """Find the epsilon that DP-SGD spends with some noise.

    Example: fedpeft privacy epsilon --noise-multiplier 1 --examples 6734 --batch 64 --steps 2000
    """
    if not 0 < noise_multiplier < math.inf:
        raise UserError(
            f"--noise-multiplier {noise_multiplier:g}: expected a number above 0; without noise "
            f"epsilon is infinite"
        )
    _show(_plan(examples, batch, delta, epochs, steps, convention), noise_multiplier, as_json)


@dataclass(frozen=True)
class _Plan:
    """DP-SGD but for its noise; ``error`` is the accountant's, None = ours."""

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
    """Return the plan; epochs become steps as in ``fedpeft.privacy.plan``, or in the paper.

    Raises:
        UserError: a batch larger than the data, delta not in (0, 1 / examples), not exactly one
            of epochs and steps.
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
    found = spent([Mechanism(sigma, plan.rate, plan.steps)], plan.delta, plan.error)
    if not math.isfinite(found.epsilon):
        raise UserError(
            f"--noise-multiplier {sigma:g}: expected more, there is no finite epsilon for it"
        )
    if as_json:
        numbers = {
            "noise_multiplier": sigma,
            "epsilon": found.epsilon,
            "epsilon_error": found.epsilon_error,
            "accountant": found.accountant,
            "steps": plan.steps,
            "sampling_rate": plan.rate,
        }
        print(json.dumps(numbers, indent=2))
    else:
        print(_words(plan, sigma, found))


def _words(plan: _Plan, sigma: float, found: Spent) -> str:
    error = found.epsilon_error
    above = f", {error:.2g} above its estimate" if error else ""
    return "\n".join(
        [
            f"noise multiplier  {sigma:g} (standard deviation of the noise over the clip)",
            f"epsilon           {found.epsilon:.4g} at most ({found.accountant.upper()}{above})",
            f"delta             {plan.delta:.3g}",
            f"mechanism         DP-SGD: Poisson-subsampled Gaussian, {plan.steps:,} steps, each "
            f"example with probability {plan.rate:.4g}",
            f"unit              one of a client's {plan.examples:,} examples",
            "neighbours        data sets that differ by one more example (add or remove)",
        ]
    )
