"""Statistics of privacy auditing with one training run.

Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run" (arXiv 2305.08846):
an independent fair coin decides for each of m canaries whether it is in the training data. From
the observed training, the auditor guesses r of the m coins and abstains from the others. Training
that is (epsilon, delta)-private for single examples limits the number of correct guesses; more
correct guesses refute the claim.

``p_value`` and ``lower_bound`` require that r does not depend on the scores: choosing the best of
several r afterwards means several tests of which only the luckiest is reported.
"""

from __future__ import annotations

import math

import numpy as np


def right_guesses(scores: np.ndarray, included: np.ndarray, guesses: int) -> int:
    """Return the number of correct guesses: "in" for the r/2 highest scores, "out" for the lowest.

    Args:
        scores: [m], higher = more likely in.
        included: the coins, bool [m].
        guesses: r, even, from 2 to m.
    """
    order, half = np.argsort(scores, kind="stable"), guesses // 2
    return int(included[order[-half:]].sum() + (~included[order[:half]]).sum())


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return an upper bound on P[at least ``right`` correct guesses] under (epsilon, delta)-DP.

    With delta = 0, each guess is correct with probability at most s = e^epsilon / (1 + e^epsilon),
    given any of the others, so the number of correct guesses is stochastically dominated by
    W ~ Binomial(r, s). With delta > 0 it is dominated by W + F, where F >= 0 has a mean of at most
    2 m delta (theorem 5.2 and appendix D). An F that equals i with probability 2 m delta / i
    raises the tail by this probability times P[v - i <= W < v]; the bound takes the worst i.

    Args:
        canaries: m.
        guesses: r.
        right: v, the number of correct guesses.
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
    """Return the largest epsilon that ``right`` correct guesses refute; 0 if they refute none.

    Guarantee: if the training is (epsilon, delta)-private, the result is at most epsilon with
    probability ``confidence`` over coins and training.
    """
    from scipy.optimize import brentq

    def margin(epsilon: float) -> float:
        return p_value(canaries, guesses, right, epsilon, delta) - (1 - confidence)

    if margin(0.0) > 0:
        return 0.0
    # At this epsilon, r correct guesses are likely: s^r >= 1 - r e^-epsilon > confidence.
    certain = math.log(guesses / (1 - confidence)) + 1
    return float(brentq(margin, 0.0, certain))
