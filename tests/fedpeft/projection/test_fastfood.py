"""Fastfood: its parts, the Hadamard transform, and the statistics of its entries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch
from literal import fastfood_matrix
from scipy.stats import kurtosis

from fedpeft.projection import table
from fedpeft.projection.fastfood import Fastfood
from fedpeft.projection.operators import hadamard, hadamard_sides


@pytest.mark.parametrize("size", [1, 2, 4, 8, 32, 128])
def test_hadamard_equals_the_product_with_its_matrix(size: int) -> None:
    x = torch.randn(3, 2, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix = torch.from_numpy(scipy.linalg.hadamard(size)).double()
    sides = hadamard_sides(size, x.device, x.dtype)
    torch.testing.assert_close(hadamard(x, sides), x @ matrix, rtol=0, atol=1e-11)
    torch.testing.assert_close(hadamard(hadamard(x, sides), sides), size * x, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("rows", "columns", "size", "blocks"),
    [(37, 7, 8, 5), (64, 8, 8, 8), (5, 5, 8, 1), (3, 1, 1, 3), (10, 9, 16, 1), (17, 16, 16, 2)],
)
def test_blocks_cover_rows_and_columns(rows: int, columns: int, size: int, blocks: int) -> None:
    projection = Fastfood(0, "x", rows, columns)
    assert (projection.size, projection.blocks) == (size, blocks)
    assert fastfood_matrix(projection).shape == (rows, columns)


def test_fastfood_parts_are_signs_permutation_and_normalized_gains() -> None:
    projection = Fastfood(3, "x", 5 * 256, 256)
    signs, order, gains = (
        part(0, 5) for part in (projection.signs, projection.order, projection.gains)
    )
    assert set(np.unique(signs)) == {-1, 1}
    assert abs(signs.mean()) < 5 / np.sqrt(signs.size)
    assert np.array_equal(np.sort(order, axis=1), np.tile(np.arange(256), (5, 1)))
    assert len({row.tobytes() for row in order}) == 5
    np.testing.assert_allclose((gains.astype(float) ** 2).sum(1), 1, atol=1e-6)
    ratio = table("normal")[projection.words(0, 256, "/gains")] / gains[0]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-6)  # one number scales a block
    fixed = (order == np.arange(256)).sum()
    assert fixed < 5 * 5, "a random permutation leaves one number in its place"


def test_fastfood_block_is_independent_of_the_range() -> None:
    projection = Fastfood(3, "x", 6 * 8, 8)
    for part in (projection.signs, projection.order, projection.gains):
        assert np.array_equal(part(2, 5), part(0, 6)[2:5])


def test_full_fastfood_rows_have_equal_length() -> None:
    """sqrt(n), so that entries have unit variance."""
    whole = fastfood_matrix(Fastfood(0, "x", 100, 64))
    np.testing.assert_allclose(whole.norm(dim=1), 8, rtol=1e-6)
    cut = fastfood_matrix(Fastfood(0, "x", 100, 40))
    assert torch.equal(cut, whole[:, :40])


def test_entries_have_mean_zero_and_unit_variance() -> None:
    entries = fastfood_matrix(Fastfood(0, "x", 2000, 200)).numpy()
    assert abs(entries.mean()) < 0.01
    assert abs(entries.std() - 1) < 0.01
    assert abs(kurtosis(entries, axis=None)) < 0.1, "close to normal"
