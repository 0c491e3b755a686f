"""Auditing differential privacy in one training run: the statistics.

Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run" (arXiv 2305.08846):
each of m canaries is put into the training data or left out by its own fair coin. From what the
training shows, the auditor guesses r of the m coins and abstains on the others. Training that is
(epsilon, delta)-private for single examples allows only so many right guesses; more refute it.

``p_value`` and ``lower_bound`` hold for an r that does not depend on the scores. Picking the
best of many r afterwards is as many tests, of which only the luckiest is told.
"""

from __future__ import annotations

import math

import numpy as np


def right_guesses(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """Return how many guesses are right: the highest scores are "in", as many lowest are "out".

    Args:
        scores: [m], higher = rather in.
        included: bool [m], the coins.
        guesses: r, even, from 2 to m.
    """
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    return int(included[order[-half:]].sum() + (~included[order[:half]]).sum())


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on the chance of so many right guesses under (epsilon, delta)-DP.

    Without delta each guess is right with probability at most s = e^epsilon / (1 + e^epsilon),
    whatever the others are, so the number W of right guesses is below a Binomial(r, s). With
    delta, W + F is above the number instead, with an F >= 0 of mean at most 2 m delta (theorem 5.2
    and appendix D). An F that is i with probability 2 m delta / i lifts the tail by that times
    P[v - i <= W < v]; the worst i counts.

    Args:
        canaries: m.
        guesses: r.
        right: v.
        epsilon: of the hypothesis, at least 0.
        delta: of the hypothesis.
    """
    from scipy.stats import binom

    success = 1 / (1 + math.exp(-epsilon))
    # P[W >= v - i] for i = 0 .. v.
    tails = binom.sf(np.arange(right, -1, -1) - 1, guesses, success)
    lifted = (tails[1:] - tails[0]) / np.arange(1, right + 1)
    return min(1.0, float(tails[0] + 2 * canaries * delta * lifted.max(initial=0.0)))


def lower_bound(canaries: int, guesses: int, right: int, delta: float, confidence: float) -> float:
    """Return the largest epsilon that so many right guesses refute; 0 where they refute none.

    Guarantee: if the training is (epsilon, delta)-private, the result is at most epsilon with
    probability ``confidence`` over coins and training.
    """
    from scipy.optimize import brentq

    def margin(epsilon: float) -> float:
        return p_value(canaries, guesses, right, epsilon, delta) - (1 - confidence)

    if margin(0.0) > 0:
        return 0.0
    # At this epsilon even r right guesses are likely: s^r >= 1 - r e^-epsilon > confidence.
    certain = math.log(guesses / (1 - confidence)) + 1
    return float(brentq(margin, 0.0, certain))
