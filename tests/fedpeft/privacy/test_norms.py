"""Norms of long rows, in float32 as in training, against NumPy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpeft.privacy.norms import row_norms


@pytest.mark.parametrize("size", [0, 1, 5, 1 << 16, (1 << 16) + 1, 4_000_000])
def test_the_norm_of_a_long_row_is_accurate(size: int) -> None:
    rows = np.random.default_rng(0).normal(size=(2, size)).astype(np.float32)
    rows[1] = 1e-3  # equal numbers round the same way every time
    norms = row_norms(torch.from_numpy(rows))
    assert norms.dtype == torch.float64
    expected = np.linalg.norm(rows.astype(np.float64), axis=1)
    np.testing.assert_allclose(norms.numpy(), expected, rtol=1e-12)


def test_a_non_finite_row_changes_no_other_norm() -> None:
    rows = torch.ones(4, 100_000)
    rows[1, 70_000], rows[2, 3], rows[3] = float("nan"), float("-inf"), 1e30
    norms = row_norms(rows)
    assert norms.isfinite().tolist() == [True, False, False, True]  # 1e30^2 is no float32
    assert norms[0] == pytest.approx(100_000**0.5, rel=1e-12)


def test_row_norms_does_not_change_the_rows() -> None:
    for dtype in (torch.float32, torch.float64):
        rows = torch.tensor([[3.0, -4.0]], dtype=dtype)
        assert row_norms(rows).tolist() == [5.0]
        assert rows.tolist() == [[3.0, -4.0]]
