"""Thresholds against the best lies of a malicious server, found by linear programming."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from scipy.optimize import linprog

from fedpeft.errors import UserError
from fedpeft.secure import tails
from fedpeft.secure.thresholds import (
    COMPLETE,
    SECRECY,
    sharing_of,
    threshold,
    with_holders,
)


def least_sum(clients: int, colluders: int, survivors: int) -> int:
    """The bound if all hold shares; 1 if it is too small to be used."""
    try:
        return sharing_of(clients, colluders, survivors).least
    except UserError:
        return 1


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
    for clients in range(3, COMPLETE + 1):
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
        (1000, 900, 0, "secure.colluders = 900: of 1000 clients in a round; expected at most"),
        (1000, 50, 700, "secure.threshold = 700: expected 7[0-9][0-9] to 1000"),
    ],
)
def test_unsafe_thresholds_are_refused(
    clients: int, colluders: int, chosen: int, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        threshold(clients, colluders, chosen)
    assert threshold(10, 1, 7) == 7


def test_known_failures_of_a_hundred_other_holders() -> None:
    """1,000 clients, 20 % lost, 5 % colluders, 100 other holders, t = 60.

    In 2e-4 of the rounds a client lacks shares, in 6e-6 one has colluders enough for 2 t <= k + c,
    and in 5e-5 if it holds a share itself (2 t <= k + 1 + c).
    """
    missing = tails.hypergeometric(999, 800, 100)[:60].sum()
    colluding = tails.hypergeometric(999, 50, 100)
    found = [1000 * each for each in (missing, colluding[20:].sum(), colluding[19:].sum())]
    assert [f"{each:.0e}" for each in found] == ["2e-04", "6e-06", "5e-05"]


def test_few_holders_are_the_fewest_that_are_safe() -> None:
    made = sharing_of(1000, 50, threshold(1000, 50))
    assert (made.survivors, made.holders, made.needed) == (800, 137, 83)
    assert 2 * made.needed > made.holders and made.least >= 100
    for fewer in (made.holders - 1, made.holders - 2):
        other = with_holders(1000, 50, 800, fewer)
        assert other is None or other.least < 100


def test_simulated_rounds_fail_as_rarely_as_stated() -> None:
    """Counts of revealed shares and of colluders for random holders, at a failure of 5 %.

    A failure of 1e-4 would take a million simulated rounds, so the tails are compared at larger
    ones.
    """
    draw, clients, lost, holders, colluders = np.random.default_rng(0), 200, 40, 60, 10
    lacking, colluding = [], []
    for _ in range(20_000):
        chosen = draw.permutation(clients - 1)[: holders - 1]
        lacking.append((chosen >= lost).sum())
        colluding.append((chosen < colluders).sum())
    stay = tails.hypergeometric(clients - 1, clients - 1 - lost, holders - 1)
    needed = tails.reached(stay, 0.05)
    assert (np.array(lacking) < needed).mean() == pytest.approx(stay[:needed].sum(), abs=0.006)
    assert stay[:needed].sum() <= 0.05 < stay[: needed + 1].sum()
    bad = tails.hypergeometric(clients - 1, colluders, holders - 1)
    most = tails.exceeded(bad, 0.05)
    assert (np.array(colluding) > most).mean() == pytest.approx(bad[most + 1 :].sum(), abs=0.006)
    assert bad[most + 1 :].sum() <= 0.05 < bad[most:].sum()


def test_honest_holders_seldom_refuse() -> None:
    made = sharing_of(300, 15, 240)
    draw, refused = np.random.default_rng(0), 0.0
    for _ in range(300):
        counts = np.ones(300)  # each holds shares of one lost client already
        for _ in range(59):
            counts[draw.permutation(300)[: made.holders - 1]] += 1
        refused += (counts > made.lost).mean() / 300
    assert 0 < refused <= 0.01


def test_the_greedy_lies_of_a_server_stay_above_the_bound() -> None:
    """Honest holders call the owners lost that need the fewest more, up to their limit of lost."""
    clients, colluders = 200, 10
    made = sharing_of(clients, colluders, threshold(clients, colluders))
    draw, honest = np.random.default_rng(0), clients - colluders
    holds = np.zeros((clients, clients), bool)
    for owner in range(clients):
        others = draw.permutation([c for c in range(clients) if c != owner])
        holds[others[: made.holders - 1], owner] = True
    left = np.full(honest, made.lost)  # calls of each honest holder
    need = made.needed - holds[honest:, :honest].sum(axis=0)
    revealed = 0
    for owner in np.argsort(need):
        able = np.flatnonzero(holds[:honest, owner] & (left > 0))
        if len(able) >= need[owner]:
            left[able[np.argsort(-left[able])][: need[owner]]] -= 1
            revealed += 1
    readable = made.survivors - colluders - revealed
    assert made.least <= readable < honest


def test_a_threshold_that_loses_too_many_is_refused_and_large_rounds_are_possible() -> None:
    assert threshold(4096, 200) == 3277
    made = sharing_of(4096, 200, 3277)
    assert made.holders <= 255 and made.least >= 409
    with pytest.raises(UserError, match="not safe with 1000 of 1000 clients"):
        sharing_of(1000, 50, 600)


@pytest.mark.parametrize(("asked", "colluders", "survivors"), [(300, 15, 240), (600, 60, 540)])
def test_short_lists_of_clients_are_safe_too(asked: int, colluders: int, survivors: int) -> None:
    """A server may name any number of clients from the survivors on."""
    least = sharing_of(asked, colluders, survivors).least
    for clients in range(survivors, asked + 1):
        made = sharing_of(asked, colluders, survivors, clients)
        assert made.survivors == survivors and made.least >= least
        colluding = tails.hypergeometric(clients - 1, colluders, made.holders - 1)
        most = tails.exceeded(colluding, SECRECY / 2 / clients)
        assert 2 * made.needed > made.holders + most


def test_a_server_cannot_try_until_holders_suit_it() -> None:
    """A round may be prepared again under other numbers; ten million tries succeed with 1e-3."""
    made = sharing_of(1000, 50, 800)
    most = 2 * made.needed - made.holders - 1
    assert 1000 * tails.hypergeometric(999, 50, made.holders - 1)[most + 1 :].sum() <= 1e-10


@pytest.mark.parametrize("clients", [129, 255])
def test_sums_of_few_holders_have_a_tenth_of_the_clients(clients: int) -> None:
    """Also where all clients have to hold shares, because no fewer are safe."""
    for colluders in (1, clients // 20, clients // 3):
        for chosen in range(clients, clients // 2 - 1, -7):
            with suppress(UserError):
                survivors = threshold(clients, colluders, chosen)
                assert sharing_of(clients, colluders, survivors).least >= clients // 10
