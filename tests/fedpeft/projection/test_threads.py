"""Entries do not depend on the number of threads or the size of chunks."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpeft import projection as module
from fedpeft.projection import Projection, table, threads

WHOLE = Projection(2, "x", 20, 30, "normal")


@pytest.fixture(params=[1, 2, 3])
def count(request: pytest.FixtureRequest) -> Iterator[int]:
    """So many threads, as ``engine.threads`` sets them."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("distribution", ["normal", "uniform", "identity"])
def test_columns_are_independent_of_the_number_of_threads(
    monkeypatch: pytest.MonkeyPatch, count: int, distribution: str
) -> None:
    """Shares end inside a block of the stream and inside a column."""
    monkeypatch.setattr(threads, "SHARE", 50)
    projection = Projection(0, "a", 23, 23, distribution)
    for start, stop in ((0, 23), (0, 1), (16, 23)):
        actual = np.empty((stop - start, 23), np.float32)
        threads.fill(projection, start, actual)
        assert np.array_equal(actual, projection.transposed(start, stop))


def test_threads_share_large_projections(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    seen: list[tuple[int, int]] = []

    def fill(self: Projection, start: int, entries: np.ndarray) -> None:
        seen.append((start, threading.get_ident()))

    monkeypatch.setattr(Projection, "fill", fill)
    monkeypatch.setattr(threads, "SHARE", 50)
    projection = Projection(0, "a", 10, 20, "normal")
    threads.fill(projection, 4, np.empty((6, 10), np.float32))  # 60 entries: not worth it
    assert seen == [(40, threading.get_ident())]
    seen.clear()
    threads.fill(projection, 0, np.empty((20, 10), np.float32))
    assert sorted(start for start, _ in seen) == [*range(0, 200, -(-200 // count))]
    assert (threading.get_ident() in dict(map(reversed, seen))) == (count == 1)


def test_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    def fill(self: Projection, start: int, entries: np.ndarray) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(Projection, "fill", fill)
    monkeypatch.setattr(threads, "SHARE", 50)
    with pytest.raises(MemoryError, match="no room"):
        threads.fill(Projection(0, "a", 10, 20, "normal"), 0, np.empty((20, 10), np.float32))


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from([16, 48, 1 << 15]))
def test_entries_are_independent_of_the_chunk_size(start: int, count: int, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        actual = WHOLE.samples(start, count)
    assert np.array_equal(actual, table("normal")[WHOLE.words(0, 600)[start : start + count]])


def test_key_is_that_of_the_generator() -> None:
    """numpy's Philox of this key draws the stream's words."""
    key = int.from_bytes(WHOLE.key().astype("<u8").tobytes(), "little")
    words = np.random.Philox(key=key, counter=0).random_raw(8)
    assert np.array_equal(words.astype("<u8").view("<u2"), WHOLE.words(0, 32))
