"""Devices, precision and threads, as the settings of ``engine`` choose them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fedpeft.errors import UserError

if TYPE_CHECKING:
    import torch


def choose_device(device: str, dtype: str = "float32") -> torch.device:
    """Return the device of ``engine.device``; ``auto`` takes cuda, then mps, then cpu.

    mps does not support float64.

    Raises:
        UserError: the device is not available.
    """
    import torch

    mps = torch.backends.mps.is_available() and dtype != "float64"
    available = {"cuda": torch.cuda.is_available(), "mps": mps}
    if device == "auto":
        device = next((name for name in available if available[name]), "cpu")
    if not available.get(device, True):
        raise UserError(
            f"engine.device = '{device}': torch finds no such device for {dtype}; use 'auto'"
        )
    return torch.device(device)


def choose_autocast(
    autocast: str, device: torch.device, dtype: torch.dtype, weights: str = "float32"
) -> str:
    """Return the precision of ``engine.autocast``: ``off`` or the name of a torch dtype.

    ``auto`` takes bfloat16 where the hardware multiplies it natively: on a CPU with AVX-512 BF16,
    AMX or the same of ARM, on CUDA from compute capability 8.0. float64 stays as it is. Frozen
    weights in bfloat16 need it: ``weights`` is the form in which the backbone holds them.
    """
    import torch

    if weights == "bfloat16":
        return "bfloat16"
    if autocast != "auto":
        return autocast
    return "bfloat16" if dtype == torch.float32 and _multiplies_bfloat16(device) else "off"


def emulated(precision: str, device: torch.device) -> str:
    """Return a line if a CPU computes ``precision`` without instructions for it, else ""."""
    if precision != "bfloat16" or device.type != "cpu" or _multiplies_bfloat16(device):
        return ""
    return "warning: this CPU emulates bfloat16, which takes several times as long as float32"


def _multiplies_bfloat16(device: torch.device) -> bool:
    import torch

    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and hasattr(torch.cpu, "get_capabilities"):  # torch 2.13
        found = torch.cpu.get_capabilities()
        return any(found.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    return False


def set_threads(threads: int, processes: int = 1) -> None:
    """Set the number of torch threads of this process; the last bits of results depend on it.

    0 divides the cores among ``processes`` processes.
    """
    import torch

    # oneDNN keeps the code of 1,024 shapes by default, which took 160 MB in four rounds with texts
    # of many lengths. One pass has fewer shapes than this limit.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16")
    threads = threads or max(1, (os.cpu_count() or 1) // processes)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
