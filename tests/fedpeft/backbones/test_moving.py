"""Copies of task vectors to a device and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fedpeft.backbones.moving import to_array, to_device


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
        ),
    ],
)
def test_numbers_come_back_as_they_went(device: str) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 1000))
    there = to_device(numbers, torch.device(device), torch.float32)
    assert there.device.type == device and there.dtype == torch.float32
    back = to_array(there)
    np.testing.assert_array_equal(back, numbers.astype(np.float32))
    if device == "cuda":
        there.zero_()
        assert back.any()  # does not share the GPU's memory


def test_the_cpu_shares_the_memory() -> None:
    numbers = np.zeros(5, np.float32)
    shared = to_device(numbers, torch.device("cpu"), torch.float32)
    shared[2] = 7.0
    assert numbers[2] == 7.0 and np.shares_memory(to_array(shared), numbers)
