"""Audit of one client of an experiment: attacks with canaries and by inversion of updates."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from fedpeft.attacks.canaries import Planted, attacker_start, plant, scores, train
from fedpeft.attacks.inversion import (
    SPREAD,
    Guess,
    Puzzle,
    invert,
    one_step,
    puzzle_of,
    recovered,
    usual_guess,
)
from fedpeft.attacks.one_run import lower_bound, right_guesses
from fedpeft.batches.encoded import Encoded
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.dpsgd import DPSGD
from fedpeft.privacy.noise import SecureNoise, noise_of
from fedpeft.privacy.plan import Plan, example_plan
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from fedpeft.tasks.encoding import encode

#: Largest delta of claim and bound: the lower bound needs a small 2 m delta.
_DELTA = 1e-5
_CANARIES = 200
_VICTIMS, _TOKENS, _RESTARTS = 5, 8, 8  # of inversion: texts, tokens per text, searches

#: Called with a name and a number of steps; returns a function to call after each step.
Progress = Callable[[str, int], Callable[[], None]]


@dataclass(frozen=True)
class Subject:
    """The client under attack.

    Attributes:
        runtime: of an experiment that trains one step of plain SGD per round.
        rows: the client's examples in the task's training split.
        planted: these examples with canaries.
        guesses: number of coins that the attacker guesses.
        plan: the privacy plan; None = without privacy of examples.
    """

    runtime: Runtime
    rows: np.ndarray
    planted: Planted
    guesses: int
    plan: Plan | None

    def dpsgd(self, purpose: str, index: int) -> DPSGD:
        """Return the client's DP-SGD; without privacy, that of zero noise, for the attacker.

        Args:
            purpose: purpose of the random generator.
            index: a different number for every training, so that noise never repeats.
        """
        privacy, count = self.runtime.experiment.privacy, len(self.planted.trained)
        if self.plan is None:
            rate = min(1.0, self.runtime.experiment.local.batch_size / count)
            plain = Mechanism(0.0, rate, 1)
            return DPSGD(plain, 0.0, "flat", privacy.physical_batch, SecureNoise())
        noise = noise_of(privacy.reproducible, self.runtime.experiment.seed, purpose, index)
        mechanism, size = self.plan.mechanism, privacy.physical_batch
        return DPSGD(mechanism, privacy.clip, privacy.clipping, size, noise, rank=privacy.rank)


def subject_of(
    runtime: Runtime, rows: np.ndarray, canaries: int | None, guesses: int | None
) -> Subject:
    """Plant canaries in a client's examples.

    Args:
        runtime: see ``Subject``.
        rows: the client's examples in the task's training split.
        canaries: m; None = 200, at most two thirds of the examples.
        guesses: None = half of the canaries: guesses with an unclear score are wrong as often as
            right and dilute the clear ones, but few guesses prove little even if all are right.
            The number is fixed here, before any score is known.

    Raises:
        UserError: the task is not a classification, only whole clients are protected, a number
            is out of range, or see ``example_plan``.
    """
    experiment, info, count = runtime.experiment, runtime.task.info, len(rows)
    if info.kind != "classes":
        raise UserError(
            f"task.name = '{info.name}': canaries are mislabeled texts; expected a task that "
            f"predicts classes, not {info.kind}"
        )
    if experiment.by_likelihood:
        raise UserError(
            "head.kind = 'likelihood': the audit's texts have no prompt; expected 'linear'"
        )
    if experiment.privacy.unit == "client":
        raise UserError(
            "privacy.unit = 'client': the audit attacks single examples; expected 'example', "
            "'both', or 'none' to see what leaks without privacy"
        )
    canaries = min(_CANARIES, 2 * count // 3) if canaries is None else canaries
    if not 2 <= canaries < count:
        raise UserError(
            f"--canaries {canaries}: expected 2 to {count - 1}, less than the client's {count} "
            f"examples"
        )
    guesses = canaries // 4 * 2 or 2 if guesses is None else guesses
    if not 2 <= guesses <= canaries or guesses % 2:
        raise UserError(
            f"--guesses {guesses}: expected an even number from 2 to {canaries}, the canaries"
        )
    planted = plant(runtime.model, runtime.train.select(rows), canaries, experiment.seed)
    private = experiment.privacy.examples
    plan = example_plan(experiment, len(planted.trained)) if private else None
    return Subject(runtime, rows, planted, guesses, plan)


def canary_audit(
    subject: Subject, rounds: int, confidence: float, progress: Progress
) -> dict[str, Any]:
    """Train the subject and guess its coins.

    Returns:
        ``claimed_epsilon`` (None without a claim), ``lower_bound``, ``confidence``,
        ``canaries``, ``guesses``, ``right``, ``rounds``, ``delta`` of claim and bound.
    """
    experiment, planted, model = subject.runtime.experiment, subject.planted, subject.runtime.model
    local = experiment.local
    assert local.lr is not None, "filled in by Experiment"

    dpsgd = partial(subject.dpsgd, "example-noise")
    private = dpsgd if subject.plan else None
    step = progress(f"training {rounds} rounds", rounds)
    vectors = train(model, planted, local, rounds, experiment.seed, private, step)
    step = progress("guessing the coins", rounds)
    weights = scores(model, planted, vectors, local.lr, dpsgd(0), step)
    right = right_guesses(weights, planted.included, subject.guesses)
    canaries, guesses = len(planted.included), subject.guesses
    delta = min(_DELTA, subject.plan.delta) if subject.plan else _DELTA
    return {
        "claimed_epsilon": _claim(subject.plan, rounds, delta),
        "lower_bound": lower_bound(canaries, guesses, right, delta, confidence),
        "confidence": confidence,
        "canaries": canaries,
        "guesses": guesses,
        "right": right,
        "rounds": rounds,
        "delta": delta,
    }


def _claim(plan: Plan | None, rounds: int, delta: float) -> float | None:
    """Return the epsilon of all rounds; None if it is unbounded."""
    if plan is None:
        return None
    steps = rounds * plan.mechanism.steps
    epsilon = spent([replace(plan.mechanism, steps=steps)], delta).epsilon
    return epsilon if math.isfinite(epsilon) else None


def candidate_tokens(runtime: Runtime) -> np.ndarray:
    """Return the tokens of the public dev texts [V], without special tokens."""
    return np.setdiff1d(runtime.dev.tokens, runtime.backbone.tokenizer.all_special_ids)


def inversion_audit(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Invert one training step on each of the subject's first texts, cut to a few tokens.

    Returns:
        ``victims``, ``tokens`` (the unknown tokens of all victims), ``candidates``; the shares of
        ``Recovered`` for ``without_dp``, ``with_dp`` (None without privacy), ``usual`` (see
        ``usual_guess``) and ``random``; ``noise_multiplier`` and ``clip`` of ``with_dp``.
    """
    runtime, plan = subject.runtime, subject.plan
    candidates = candidate_tokens(runtime)
    victims = _victims(subject)
    special = runtime.backbone.tokenizer.all_special_ids
    puzzles = [puzzle_of(victim, special, candidates) for victim in victims]
    draw = generator(runtime.experiment.seed, "audit-random")

    def at_random(puzzle: Puzzle) -> Guess:
        tokens = draw.choice(candidates, len(puzzle.unknown))
        return tokens, int(draw.integers(runtime.model.head.classes))

    guesses = {
        "usual": [usual_guess(puzzle, runtime.dev) for puzzle in puzzles],
        "random": [at_random(puzzle) for puzzle in puzzles],
        "without_dp": _attack(subject, victims, puzzles, False, progress),
    }
    if plan:
        guesses["with_dp"] = _attack(subject, victims, puzzles, True, progress)
    shares = {
        name: asdict(recovered(victims, puzzles, attempts)) for name, attempts in guesses.items()
    }
    return {
        "victims": len(victims),
        "tokens": sum(len(puzzle.unknown) for puzzle in puzzles),
        "candidates": len(candidates),
        "noise_multiplier": plan.mechanism.noise_multiplier if plan else None,
        "clip": runtime.experiment.privacy.clip if plan else None,
        "with_dp": None,
        **shares,
    }


def _victims(subject: Subject) -> list[Encoded]:
    """Return the client's first texts, cut to a few tokens, as data sets of one example."""
    runtime = subject.runtime
    texts = encode(
        runtime.task.train.select(subject.rows[:_VICTIMS]),
        runtime.backbone.tokenizer,
        str(runtime.experiment.representation),
        _TOKENS,
    )
    return [texts.select(np.array([row])) for row in range(len(texts))]


def _attack(
    subject: Subject,
    victims: list[Encoded],
    puzzles: list[Puzzle],
    private: bool,
    progress: Progress,
) -> list[Guess]:
    """Return the attacker's guess for each victim."""
    experiment, model = subject.runtime.experiment, subject.runtime.model
    start, lr = attacker_start(model, experiment.seed, SPREAD), experiment.local.lr
    assert lr is not None, "filled in by Experiment"
    step = progress(f"inverting updates with{'' if private else 'out'} DP", len(victims))
    guesses = []
    for index, (victim, puzzle) in enumerate(zip(victims, puzzles, strict=True)):
        dpsgd = None
        if private:  # the sampling rate of a single example is 1
            dpsgd = subject.dpsgd("audit-inversion", index)
            dpsgd = replace(dpsgd, mechanism=Mechanism(dpsgd.mechanism.noise_multiplier, 1.0, 1))
        update = one_step(model, start, victim, lr, dpsgd)
        draw = generator(experiment.seed, "audit-search", index)
        guesses.append(invert(model, start, update, puzzle, _RESTARTS, draw))
        step()
    return guesses
