"""Thresholds against the best lies of a malicious server, found by linear programming."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from fedpeft.errors import UserError
from fedpeft.secure.thresholds import least_sum, threshold


def readable(clients: int, colluders: int, needed: int, size: int) -> bool:
    """Whether some lies reveal the sum of ``size`` honest clients, among the fewest members.

    Client v calls client j lost (x[v, j] = 1) or not; a colluder reveals both shares of everyone.
    The server has to get the self-masks of the first ``size`` clients and the keys of the other
    honest members. The program has integral solutions: its matrix is that of a flow.
    """
    honest, members = clients - colluders, needed - colluders
    others = range(size, members)
    index = {
        (v, j): place
        for place, (v, j) in enumerate(
            (v, j) for v in range(honest) for j in range(honest) if v != j
        )
    }
    rows, limits = [], []

    def at_most(terms: dict[int, float], limit: float) -> None:
        row = np.zeros(len(index))
        for place, factor in terms.items():
            row[place] += factor
        rows.append(row)
        limits.append(limit)

    for v in range(honest):  # each client insists on so many survivors
        at_most({index[v, j]: 1 for j in range(honest) if v != j}, clients - needed)
    for j in others:  # enough holders reveal its key
        at_most({index[v, j]: -1 for v in range(honest) if v != j}, -(needed - colluders))
    for j in range(size):  # enough holders reveal its self-mask, itself among them
        lost = {index[v, j]: 1 for v in range(honest) if v != j}
        at_most(lost, honest - (needed - colluders))
    if 2 * needed <= clients + colluders:
        return True  # both secrets of a client
    return linprog(np.zeros(len(index)), np.array(rows), limits, bounds=(0, 1)).status == 0


@pytest.mark.parametrize("clients", range(3, 13))
def test_no_lies_reveal_fewer_clients_than_stated(clients: int) -> None:
    checked = 0
    for colluders in range(clients - 1):
        for needed in range(colluders + 2, clients + 1):
            least = least_sum(clients, colluders, needed)
            for size in range(1, least):
                assert not readable(clients, colluders, needed, size)
                checked += 1
    assert checked


def test_half_of_the_clients_are_not_enough() -> None:
    """2 t > n + c alone lets a server read one update through the keys of its members."""
    assert readable(10, 0, 6, size=1)
    assert least_sum(10, 0, 6) == 1
    assert threshold(10, 0) == 8


def test_the_usual_threshold_sums_half_of_the_honest_clients() -> None:
    for clients in range(3, 256):
        for colluders in {0, 1, clients // 10} - {clients - 1}:
            needed = threshold(clients, colluders)
            assert 2 * least_sum(clients, colluders, needed) >= clients - colluders
            assert needed == clients or 2 * least_sum(clients, colluders, needed - 1) < (
                clients - colluders
            )


def test_a_fifth_of_a_hundred_clients_may_be_lost() -> None:
    assert threshold(100, 10) == 80
    assert least_sum(100, 10, 80) == 45


@pytest.mark.parametrize(
    ("clients", "colluders", "chosen", "expected"),
    [
        (10, 1, 6, "secure.threshold = 6: expected 7 to 10"),
        (10, 1, 11, "secure.threshold = 11: expected 7 to 10"),
        (5, 4, 0, "secure.colluders = 4: of 5 clients in a round; expected at most 3"),
    ],
)
def test_unsafe_thresholds_are_refused(
    clients: int, colluders: int, chosen: int, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        threshold(clients, colluders, chosen)
    assert threshold(10, 1, 7) == 7
