"""Both attacks on one client of an experiment: canaries in its training, inversion of an update."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
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
from fedpeft.errors import UserError
from fedpeft.privacy.accounting import Mechanism, spent
from fedpeft.privacy.example import DPSGD
from fedpeft.privacy.noise import SecureNoise, noise_of
from fedpeft.privacy.plan import Plan, example_plan
from fedpeft.randomness import generator
from fedpeft.runtime import Runtime
from fedpeft.tasks.encoding import Encoded, encode

#: The claim is looked at with at most this delta: the lower bound needs a small 2 m delta.
_DELTA = 1e-5
_CANARIES = 200
_VICTIMS, _TOKENS, _RESTARTS = 5, 8, 8  # of inversion: texts, each one's tokens, searches

#: Called with a name and a number of steps; what it returns is called after each step.
Progress = Callable[[str, int], Callable[[], None]]


@dataclass(frozen=True)
class Subject:
    """The client under attack.

    Attributes:
        runtime: of an experiment whose optimiser is plain SGD of one step a round.
        rows: the client's examples in the task's training split.
        planted: the same with canaries.
        guesses: how many coins the attacker guesses.
        plan: how it trains; None = without privacy of examples.
    """

    runtime: Runtime
    rows: np.ndarray
    planted: Planted
    guesses: int
    plan: Plan | None

    def dpsgd(self, purpose: str, index: int) -> DPSGD:
        """Return how the client trains once; without privacy, what an attacker takes it for.

        Args:
            purpose: of the noise.
            index: which of them: of several it is never the same noise.
        """
        privacy, count = self.runtime.experiment.privacy, len(self.planted.trained)
        if self.plan is None:
            rate = min(1.0, self.runtime.experiment.local.batch_size / count)
            plain = Mechanism(0.0, rate, 1)
            return DPSGD(plain, 0.0, "flat", privacy.physical_batch, SecureNoise())
        noise = noise_of(privacy.reproducible, self.runtime.experiment.seed, purpose, index)
        mechanism, size = self.plan.mechanism, privacy.physical_batch
        return DPSGD(mechanism, privacy.clip, privacy.clipping, size, noise)


def subject_of(
    runtime: Runtime, rows: np.ndarray, canaries: int | None, guesses: int | None
) -> Subject:
    """Plant canaries among a client's examples.

    Args:
        runtime: see ``Subject``.
        rows: the client's examples in the task's training split.
        canaries: m; None = 200, at most two thirds of the examples.
        guesses: None = half of the canaries. A guess at a coin of which little is seen is wrong
            as often as right, so all canaries would dilute what the clearest ones show; a few
            guesses alone prove little even when all are right. It is fixed here, before any
            score is seen.

    Raises:
        UserError: labels that are no classes, privacy of whole clients only, numbers out of
            range, or see ``example_plan``.
    """
    experiment, info, count = runtime.experiment, runtime.task.info, len(rows)
    if info.kind != "classes":
        raise UserError(
            f"task.name = '{info.name}': canaries are mislabelled texts; expected a task of "
            f"classes, not of {info.kind}"
        )
    if experiment.privacy.unit == "client":
        raise UserError(
            "privacy.unit = 'client': the audit is of single examples; expected 'example' or "
            "'both', or 'none' to see what leaks without privacy"
        )
    canaries = min(_CANARIES, 2 * count // 3) if canaries is None else canaries
    if not 2 <= canaries < count:
        raise UserError(
            f"--canaries {canaries}: expected from 2 to {count - 1}, less than the client's "
            f"{count} examples"
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
        ``claimed_epsilon`` (None where there is no claim), ``lower_bound``, ``confidence``,
        ``canaries``, ``guesses``, ``right``, ``rounds``, ``delta`` of claim and bound.
    """
    experiment, planted, model = subject.runtime.experiment, subject.planted, subject.runtime.model
    local = experiment.local
    assert local.lr is not None, "filled in by Experiment"

    def how(round: int) -> DPSGD:
        return subject.dpsgd("example-noise", round)

    private = how if subject.plan else None
    step = progress(f"training {rounds} rounds", rounds)
    vectors = train(model, planted, local, rounds, experiment.seed, private, lambda _: step())
    step = progress("guessing the coins", rounds)
    found = scores(model, planted, vectors, local.lr, how(0), lambda _: step())
    right = right_guesses(found, planted.included, subject.guesses)
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
    """Return the epsilon of all rounds together; None where nothing bounds it."""
    if plan is None:
        return None
    steps = rounds * plan.mechanism.steps
    epsilon = spent([replace(plan.mechanism, steps=steps)], delta).epsilon
    return epsilon if math.isfinite(epsilon) else None


def candidate_tokens(runtime: Runtime) -> np.ndarray:
    """Return the tokens of the public dev texts [V], without special ones."""
    return np.setdiff1d(runtime.dev.tokens, runtime.backbone.tokenizer.all_special_ids)


def inversion_audit(subject: Subject, progress: Progress) -> dict[str, Any]:
    """Invert one step on each of a few texts of the subject, cut to a few tokens.

    Returns:
        ``victims``, ``tokens`` to find in all, ``candidates``; and of ``without_dp``, ``with_dp``
        (None without privacy), ``usual`` (the most frequent token at each place) and ``random``
        the shares of ``Recovered``; ``noise_multiplier`` and ``clip`` of ``with_dp``.
    """
    runtime, plan = subject.runtime, subject.plan
    candidates = candidate_tokens(runtime)
    victims = _victims(subject)
    special = runtime.backbone.tokenizer.all_special_ids
    puzzles = [puzzle_of(victim, special, candidates) for victim in victims]
    draw = generator(runtime.experiment.seed, "audit-random")

    def at_random(puzzle: Puzzle) -> Guess:
        tokens = draw.choice(candidates, len(puzzle.unknown))
        return tokens, int(draw.integers(runtime.model.classes))

    guesses = {
        "usual": [usual_guess(puzzle, runtime.dev) for puzzle in puzzles],
        "random": [at_random(puzzle) for puzzle in puzzles],
        "without_dp": _attack(subject, victims, puzzles, False, progress),
    }
    if plan:
        guesses["with_dp"] = _attack(subject, victims, puzzles, True, progress)
    shares = {name: asdict(recovered(victims, puzzles, each)) for name, each in guesses.items()}
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
    """Return the client's first texts, cut to a few tokens, each as one example."""
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
    """Return the attacker's guess at each victim."""
    experiment, model = subject.runtime.experiment, subject.runtime.model
    start, lr = attacker_start(model, experiment.seed, SPREAD), experiment.local.lr
    assert lr is not None, "filled in by Experiment"
    step = progress(f"inverting updates with{'' if private else 'out'} DP", len(victims))
    guesses = []
    for index, (victim, puzzle) in enumerate(zip(victims, puzzles, strict=True)):
        how = None
        if private:  # of a single example, all is the batch
            how = subject.dpsgd("audit-inversion", index)
            how = replace(how, mechanism=Mechanism(how.mechanism.noise_multiplier, 1.0, 1))
        update = one_step(model, start, victim, lr, how)
        draw = generator(experiment.seed, "audit-search", index)
        guesses.append(invert(model, start, update, puzzle, _RESTARTS, draw))
        step()
    return guesses
