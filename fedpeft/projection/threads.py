"""Generate entries of a projection on the CPU with as many threads as torch uses."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from fedpeft.projection import Projection

SHARE = 1 << 17  # minimum entries per thread: fewer take 0.2 ms, less than a thread costs


def fill(projection: Projection, start: int, columns: np.ndarray) -> None:
    """Write columns from ``start`` on into the rows of ``columns``, float32 [count, rows].

    The entries do not depend on the number of threads.
    """
    if projection.distribution == "identity":
        columns[:] = projection.transposed(start, start + len(columns))
        return
    entries, first = columns.reshape(-1), start * projection.rows
    threads = max(1, min(torch.get_num_threads(), len(entries) // SHARE))
    share = -(-len(entries) // threads)

    def part(begin: int) -> None:
        projection.fill(first + begin, entries[begin : begin + share])

    if threads == 1:
        part(0)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(part, range(0, len(entries), share)))
