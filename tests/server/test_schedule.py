"""The order of clients: separation, number of turns, and independence of where it is asked."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from server.privacy.schedule import Schedule


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """Return clients K, clients a round n and separation b with b n <= K."""
    per_round, separation = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    return per_round * separation + draw(st.integers(0, 9)), per_round, separation


@given(size=sizes(), seed=st.integers(0, 99))
def test_rounds_are_full_turns_apart_and_evenly_distributed(
    size: tuple[int, int, int], seed: int
) -> None:
    clients, per_round, separation = size
    schedule, turns, rounds = Schedule(*size, seed), defaultdict(list), 60
    for number in range(1, rounds + 1):
        chosen = schedule.of(number)
        assert len({*chosen.tolist()}) == per_round and np.all(np.diff(chosen) > 0)
        for client in chosen.tolist():
            turns[client].append(number)
        most = -(-number * per_round // clients)
        assert all(len(taken) <= most for taken in turns.values())
    assert all(np.diff(taken).min(initial=rounds) >= separation for taken in turns.values())
    assert min((len(taken) for taken in turns.values()), default=0) >= rounds * per_round // clients


def test_a_round_is_the_same_whichever_was_asked_before() -> None:
    one, other = (Schedule(23, 4, 3, seed=1) for _ in range(2))
    expected = [one.of(number).tolist() for number in range(1, 30)]
    for number in (29, 3, 17, 1, 29):
        assert other.of(number).tolist() == expected[number - 1]
    assert Schedule(23, 4, 3, seed=2).of(1).tolist() != expected[0]


def test_a_smaller_separation_mixes_the_clients() -> None:
    def groups(separation: int) -> int:
        schedule = Schedule(40, 4, separation, seed=0)
        return len({tuple(schedule.of(number).tolist()) for number in range(1, 201)})

    assert groups(10) == 10  # K = b n: the same groups again and again
    assert groups(5) > 150
