"""L2 norms that are accurate for rows of any length.

PyTorch sums a norm in the tensor's dtype. In float32 on a CPU the result is 0.1 % too small for
20 million random numbers and 6 % for 355 million (RoBERTa-large). A gradient clipped by such a
norm exceeds its bound, on which a privacy guarantee rests.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BLOCK = 1 << 16  # columns at a time, to avoid a copy as large as the rows; measured on a CPU


def row_norms(rows: Tensor) -> Tensor:
    """Return the L2 norm of every row of ``rows`` [n, P], float32 or float64, in float64 [n]."""
    if rows.device.type != "cpu":  # many small blocks cost more than the sum there
        return torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
    squares = torch.zeros(len(rows), dtype=torch.float64, device=rows.device)
    for block in rows.split(_BLOCK, dim=1):
        squares += block.to(torch.float64, copy=True).square_().sum(dim=1)
    return squares.sqrt_()
