"""Factorizations: sensitivity against all participation patterns, noise against dense matrices."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.linalg import toeplitz

from fedpeft.privacy.factorization import Banded, Blt, Factorization, Limits, Matrix

CASES: dict[str, tuple[Matrix, Limits]] = {
    "all bands": (Banded((1.0, 0.6, 0.3)), Limits(9, 3, 3)),
    "fewer bands than the separation": (Banded((1.0, 0.5)), Limits(8, 3, 3)),
    "the last participation is cut off": (Banded((1.0, 0.7, 0.6, 0.5)), Limits(9, 4, 3)),
    "fewer participations": (Banded((1.0, 0.5)), Limits(9, 2, 2)),
    "negative and growing bands": (Banded((1.0, -0.4, 0.8)), Limits(7, 3, 2)),
    "bands beyond the separation": (Banded((1.0, 0.6, 0.3, 0.1)), Limits(8, 2, 4)),
    "identity": (Banded((1.0,)), Limits(6, 1, 6)),
    "one round": (Blt((0.5,), (0.5,)), Limits(1, 1, 1)),
    "one buffer": (Blt((0.6,), (0.8,)), Limits(9, 3, 3)),
    "two buffers": (Blt((0.3, 0.2), (0.6, 0.95)), Limits(10, 2, 5)),
    "two buffers, fewer participations": (Blt((0.3, 0.2), (0.6, 0.95)), Limits(10, 2, 3)),
    "every round": (Blt((0.3, 0.2), (0.6, 0.95)), Limits(8, 1, 8)),
}
each_case = pytest.mark.parametrize("case", CASES)


def dense(matrix: Matrix, rounds: int) -> np.ndarray:
    """Return C [T, T]."""
    column = matrix.column(rounds)
    return toeplitz(column, np.zeros(rounds))


def patterns(limits: Limits) -> list[tuple[int, ...]]:
    """Return every possible set of rounds of one client."""
    return [
        rounds
        for size in range(1, limits.participations + 1)
        for rounds in combinations(range(limits.rounds), size)
        if all(b - a >= limits.separation for a, b in pairwise(rounds))
    ]


@each_case
def test_the_sensitivity_is_the_largest_over_all_patterns_and_directions(case: str) -> None:
    """Updates of norm 1 in equal, opposite and random directions of three dimensions."""
    matrix, limits = CASES[case]
    c, found, random = dense(matrix, limits.rounds), Factorization(matrix, limits), 0.0
    draw = np.random.default_rng(0)
    largest = largest_row = 0.0
    for rounds in patterns(limits):
        columns = c[:, rounds]
        signs = draw.choice([-1.0, 1.0], (20, len(rounds)))
        signs[0] = 1.0
        largest = max(largest, *np.linalg.norm(signs @ columns.T, axis=1))
        largest_row = max(largest_row, np.abs(columns).sum(axis=1).max())
        updates = draw.normal(size=(20, len(rounds), 3))
        updates /= np.linalg.norm(updates, axis=2, keepdims=True)
        moved = np.einsum("tk,nkp->ntp", columns, updates)
        random = max(random, *np.linalg.norm(moved, axis=(1, 2)))
    assert found.sensitivity == pytest.approx(largest, rel=1e-12)
    assert random <= found.sensitivity * (1 + 1e-12)
    assert found.row_sensitivity == pytest.approx(largest_row, rel=1e-12)


@each_case
def test_streamed_noise_is_that_of_the_dense_inverse(case: str) -> None:
    matrix, limits = CASES[case]
    z = np.random.default_rng(1).normal(size=(limits.rounds, 4))
    past, noise = np.zeros((matrix.memory, 4)), []
    for row in z:
        numbers, past = matrix.advance(row, past)
        noise.append(numbers)
        assert past.shape == (matrix.memory, 4)
    np.testing.assert_allclose(noise, np.linalg.solve(dense(matrix, limits.rounds), z), atol=1e-12)


@each_case
def test_the_noise_is_that_of_dense_matrices(case: str) -> None:
    matrix, limits = CASES[case]
    found, c = Factorization(matrix, limits), dense(matrix, limits.rounds)
    sums = np.tril(np.ones_like(c))
    for noise, rows in (
        (found.round_noise, np.linalg.inv(c)),
        (found.prefix_noise, sums @ np.linalg.inv(c)),
    ):
        expected = found.sensitivity * np.sqrt(np.mean((rows**2).sum(axis=1)))
        assert noise == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "matrix",
    [
        Banded((1.0, 0.5, 0.6)),  # grows
        Banded((1.0, 0.5, -0.1)),  # negative
        Blt((0.7, 0.6), (0.5, 0.9)),  # c_1 = 1.3
    ],
)
def test_a_matrix_of_unknown_sensitivity_is_refused(matrix: Matrix) -> None:
    with pytest.raises(ValueError, match="separation=2 bands"):
        Factorization(matrix, Limits(6, 2, 3))


def test_a_digest_depends_on_the_matrix_and_on_each_limit() -> None:
    matrix, limits = CASES["one buffer"]
    others = [
        Factorization(Blt((0.6,), (0.8000001,)), limits),
        *(Factorization(matrix, Limits(*each)) for each in ((10, 3, 3), (9, 2, 3), (9, 3, 2))),
    ]
    digests = {Factorization(matrix, limits).digest, *(each.digest for each in others)}
    assert len(digests) == 5
    assert Factorization(matrix, limits).digest in digests
