"""Copies of task vectors between the CPU's memory and a GPU's.

They pass through pinned memory. On an H200 (one trial, not in the recorded results), 125 million
float32 numbers of ``full`` then reached the GPU in 21 ms instead of 53, and came back in 9 ms
instead of 300.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

#: Bytes up to which memory is pinned: PyTorch keeps it for further copies until the process ends.
_MOST_PINNED = 1 << 31


def to_device(array: np.ndarray, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return an array as a tensor; on the CPU it shares the array's memory if the dtypes agree."""
    tensor = torch.as_tensor(array, dtype=dtype)
    if device.type == "cuda" and tensor.nbytes <= _MOST_PINNED:
        tensor = tensor.pin_memory()
    return tensor.to(device)


def to_array(tensor: Tensor) -> np.ndarray:
    """Return a tensor as an array; on the CPU they share their memory."""
    if not tensor.is_cuda or tensor.nbytes > _MOST_PINNED:
        return tensor.cpu().numpy()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor).numpy()
