"""The numbers in a message's array, read where they lie.

``Array.numpy()`` reads the file's header each time and copies the rest; the 10,000 replies of a
round have one and the same header, so it is read once, and the numbers stay in the message.
"""

from __future__ import annotations

import io
from functools import lru_cache
from math import prod

import numpy as np
from flwr.app import Array
from numpy.lib import format as npy

_MAGIC = b"\x93NUMPY\x01\x00"  # of a .npy file of version 1.0, the one that Flower writes
_START = len(_MAGIC) + 2  # then the header's length in two bytes, then the header


def numbers(array: Array) -> np.ndarray:
    """Return an array's numbers, read-only, without copying them.

    Raises:
        ValueError: it is not what Flower makes of a numpy array; nothing of it is quoted.
    """
    data = array.data
    begin = _START + int.from_bytes(data[len(_MAGIC) : _START], "little")
    shape, dtype = _header(data[:begin])
    if array.stype != "numpy.ndarray" or len(data) != begin + prod(shape) * dtype.itemsize:
        raise ValueError("an array that is no numpy array")
    return np.frombuffer(data, dtype, offset=begin).reshape(shape)


@lru_cache(maxsize=16)
def _header(head: bytes) -> tuple[tuple[int, ...], np.dtype]:
    """Return shape and dtype that stand at the start of a .npy file."""
    if not head.startswith(_MAGIC):
        raise ValueError("an array that is no .npy file of version 1.0")
    try:
        shape, by_column, dtype = npy.read_array_header_1_0(io.BytesIO(head[len(_MAGIC) :]))
    except Exception:  # numpy quotes what it found
        raise ValueError("an array whose header cannot be read") from None
    by_column = by_column and len(shape) > 1
    if dtype.hasobject or not dtype.itemsize or by_column or min(shape, default=0) < 0:
        raise ValueError("an array that does not hold numbers row by row")
    return shape, dtype
