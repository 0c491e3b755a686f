"""How many clients are trained in one batch, where the settings leave it open.

Decided from settings, sizes and data, never by a clock: a run's bits depend on it.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from fedpeft.config import Experiment
from fedpeft.methods import method_class
from fedpeft.sites import BackboneShape

#: Numbers of one hidden state and of the task vectors that a CPU handles well together: 2 MiB in
#: float32, about the L2 caches of two cores. Measured at widths 32 and 384 with 8 to 128 tokens.
CACHED = 1 << 19
MOST = 64  # more clients fill no device better, and wait for the one with the most steps
_SHARE = 0.5  # of a GPU's memory for what a cohort needs; the rest is for what is not counted
_COPIES = 8  # of a task vector: start, gradients, the optimiser's two, and what a step needs


def cohort_size(
    experiment: Experiment,
    shape: BackboneShape,
    size: int,
    lengths: np.ndarray,
    memory: int = 0,
    processes: int = 1,
) -> int:
    """Return how many clients train in one batch: ``engine.cohort``, or what suits the device.

    Args:
        experiment: all settings.
        shape: sizes of the backbone.
        size: numbers P of a task vector.
        lengths: tokens of the training texts of all clients, int [n].
        memory: bytes of each GPU; 0 = a CPU.
        processes: how many processes share the clients of a round.
    """
    engine, privacy = experiment.engine, experiment.privacy
    if engine.kind == "ray" or not method_class(experiment.method.name).grouped:
        return 1
    if engine.cohort:
        return engine.cohort
    rows = min(experiment.local.batch_size, ceil(len(lengths) / experiment.federation.clients))
    if memory:
        itemsize = np.dtype(engine.dtype).itemsize
        vectors = _COPIES + 3 * rows * privacy.examples  # DP-SGD: one and its gradient an example
        one = rows * saved_bytes(shape, int(lengths.max()), itemsize) + vectors * size * itemsize
        fits = int(memory * _SHARE - shape.parameters * itemsize) // one
    else:
        fits = int(CACHED / (rows * lengths.mean() * shape.width + size))
    if privacy.examples:
        fits = min(fits, privacy.physical_batch // rows)  # else a step would pass in more parts
    clients = ceil(experiment.clients_per_round / processes)
    fits = max(1, min(fits, clients, MOST))
    return ceil(clients / ceil(clients / fits))  # cohorts of the same size, as far as that goes


def saved_bytes(shape: BackboneShape, tokens: int, itemsize: int) -> int:
    """Return about how much the forward pass of one text keeps for the backward pass, in bytes.

    Above what most methods need, by a third to a half. Attention's scores are not among it:
    PyTorch's fused attention does not keep them.
    """
    return shape.layers * tokens * (10 * shape.width + 2 * shape.intermediate) * itemsize
