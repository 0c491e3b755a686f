"""Cutting batches by length, against every way of cutting."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from ragged import ragged

from fedpeft.batches.passes import Costs, cut_by_length, parts_by_length, pass_costs, passes_of

LENGTHS = some.lists(
    some.lists(some.integers(1, 60), max_size=9).map(lambda lengths: sorted(lengths)[::-1]),
    min_size=1,
    max_size=3,
).filter(any)


def cost(lengths: list[list[int]], ends: tuple[int, ...], overhead: float) -> float:
    """What passes over the ranks between these ends cost, in tokens."""
    total = 0.0
    for start, stop in pairwise(ends):
        longest = max(length for client in lengths for length in client[start:stop])
        total += (stop - start) * len(lengths) * longest + overhead
    return total


@given(LENGTHS, some.sampled_from([0.0, 3.0, 25.0, 1e6]), some.integers(1, 9))
@settings(max_examples=200, deadline=None)
def test_passes_are_cut_at_the_lowest_cost(
    lengths: list[list[int]], overhead: float, most: int
) -> None:
    ranks = max(map(len, lengths))
    parts = cut_by_length([np.array(client, dtype=np.int64) for client in lengths], overhead, most)
    ends = (0, *(part.stop for part in parts))
    assert [part.start for part in parts] == [*ends[:-1]]
    assert ends[-1] == ranks
    assert all(part.stop - part.start <= most for part in parts)
    every = (
        (0, *inner, ranks)
        for count in range(ranks)
        for inner in combinations(range(1, ranks), count)
    )
    least = min(
        cost(lengths, way, overhead)
        for way in every
        if all(stop - start <= most for start, stop in pairwise(way))
    )
    assert cost(lengths, ends, overhead) == least


def test_parts_hold_every_row_of_every_client_once() -> None:
    draw = np.random.default_rng(0)
    data = [ragged(draw.integers(2, 40, count)) for count in (30, 11)]
    batches = [draw.permutation(len(texts))[:9] for texts in data]
    parts = parts_by_length(data, batches, overhead=5.0)
    assert len(parts) > 1
    for client, batch in enumerate(batches):
        rows = np.concatenate([part[client] for part in parts])
        assert sorted(rows) == sorted(batch)
        assert (np.diff(data[client].lengths[rows]) <= 0).all()


def test_passes_are_packed_where_that_costs_less() -> None:
    data, batches = [ragged(np.array([2, 9, 30, 30]))], [np.arange(4)]
    cheap, dear = Costs(10, 1, 0.01), Costs(10, 1, 1.0)
    passes, packed = passes_of(data, batches, cheap, packs=True)
    assert packed
    assert [[client.tolist() for client in rows] for rows in passes] == [[[0, 1, 2, 3]]]
    for costs, packs in ((dear, True), (cheap, False)):
        passes, packed = passes_of(data, batches, costs, packs)
        assert not packed
        assert [len(rows[0]) for rows in passes] == [2, 2]


def test_passes_have_at_most_so_many_rows_packed_or_not() -> None:
    data = [ragged(np.array([2, 9, 30, 30])), ragged(np.array([5]))]
    batches = [np.arange(4), np.arange(1)]
    for costs, packs in ((Costs(10, 1, 0.01), True), (Costs(10, 1, 9.0), False)):
        passes, packed = passes_of(data, batches, costs, True, most=3)
        assert packed is packs
        assert max(len(rows) for part in passes for rows in part) <= 3
        for client, batch in enumerate(batches):
            assert sorted(np.concatenate([part[client] for part in passes])) == [*batch]
    none = np.array([], dtype=np.int64)
    assert passes_of(data, [none, none], Costs(10, 1, 0.01), True, most=3) == ([], False)


@pytest.mark.parametrize(
    ("lowered", "count", "low", "high", "padded", "packed"),
    [
        (False, 16, 5, 60, 18.8, 22.1),
        (False, 64, 5, 60, 44.0, 26.0),
        (False, 256, 5, 60, 128.0, 90.0),
        (False, 64, 20, 128, 75.5, 52.7),
        (True, 16, 5, 60, 25.0, 28.3),
        (True, 64, 5, 60, 17.7, 24.0),
        (True, 256, 5, 60, 29.8, 50.6),
        (True, 64, 20, 128, 19.3, 27.2),
        (True, 256, 100, 128, 52.8, 54.2),
    ],
)
def test_a_gpu_packs_where_that_took_less_time(
    lowered: bool, count: int, low: int, high: int, padded: float, packed: float
) -> None:
    """Milliseconds of a training pass on an H100, RoBERTa-base, in float32 or bfloat16."""
    lengths = np.random.default_rng(1).integers(low, high + 1, count)
    costs = pass_costs("cuda", 768, 1794, lowered)
    passes, packs = passes_of([ragged(lengths)], [np.arange(count)], costs, packs=True)
    assert packs == (packed < padded)
    assert len(passes) == 1


def test_equal_texts_are_not_packed() -> None:
    passes, packed = passes_of([ragged(np.full(5, 7))], [np.arange(5)], Costs(9, 1, 0.0), True)
    assert (len(passes), packed) == (1, False)


def test_an_empty_batch_beside_another_takes_part_with_no_rows() -> None:
    data = [ragged(np.array([3, 4])), ragged(np.array([5]))]
    none = np.array([], dtype=np.int64)
    (part,) = parts_by_length(data, [none, np.array([0])], overhead=1.0)
    assert [rows.tolist() for rows in part] == [[], [0]]
