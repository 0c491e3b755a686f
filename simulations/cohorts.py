"""The number of clients trained in one batch if ``engine.cohort = 0``.

It depends on settings, sizes, and data, never on a clock: a run's bits depend on it.
"""

from __future__ import annotations

from math import ceil

import numpy as np

from fedpeft.backbones.shapes import BackboneShape
from fedpeft.experiment.config import Experiment
from fedpeft.methods import method_class

#: Numbers of one hidden state and of the task vectors that fit a CPU's caches: 2 MiB in float32,
#: about the L2 caches of two cores. Measured at widths 32 and 384 with 8 to 128 tokens.
CACHED = 1 << 19
#: Bytes that the forward passes of a cohort may keep on a CPU. At MiniLM, three clients with 16
#: texts of 13 tokens; five took as long and 150 MB more.
KEPT = 1 << 27
MOST = 64  # larger cohorts are not faster: all wait for the client with the most steps
_SHARE = 0.5  # of a GPU's memory; the rest is for what is not counted here
_COPIES = 8  # of a task vector: start, gradients, two of the optimizer, temporaries of a step


def cohort_size(
    experiment: Experiment,
    shape: BackboneShape,
    size: int,
    lengths: np.ndarray,
    memory: int = 0,
    processes: int = 1,
) -> int:
    """Return the number of clients trained in one batch: ``engine.cohort`` or what fits the device.

    Args:
        experiment: all settings.
        shape: sizes of the backbone.
        size: numbers P of a task vector.
        lengths: tokens of the training texts of all clients, int [n].
        memory: bytes of each GPU; 0 = a CPU.
        processes: number of processes that share the clients of a round.
    """
    engine, privacy = experiment.engine, experiment.privacy
    if experiment.federation.mode == "async":  # those that start together need not again
        return 1
    if not method_class(experiment.method.name).grouped:
        return 1
    if engine.cohort:
        return engine.cohort
    itemsize = np.dtype(engine.dtype).itemsize
    rows = min(experiment.local.batch_size, ceil(len(lengths) / experiment.federation.clients))
    if memory:
        vectors = _COPIES + 3 * rows * privacy.examples  # DP-SGD has per-example gradients
        one = rows * saved_bytes(shape, lengths.max(), itemsize) + vectors * size * itemsize
        fits = int(memory * _SHARE - shape.parameters * itemsize) // one
    else:
        cached = CACHED / (rows * lengths.mean() * shape.width + size)
        kept = saved_bytes(shape, lengths.mean(), itemsize if engine.autocast == "off" else 2)
        fits = int(min(cached, KEPT / (rows * kept)))
    if privacy.examples:
        fits = min(fits, privacy.physical_batch // rows)  # a step is not split into more parts
    clients = ceil(experiment.clients_asked / processes)
    fits = max(1, min(fits, clients, MOST))
    return ceil(clients / ceil(clients / fits))  # cohorts of about the same size


def saved_bytes(shape: BackboneShape, tokens: float, itemsize: int) -> float:
    """Return about how many bytes the forward pass of one text keeps for the backward pass.

    This is a third to a half more than most methods need. Attention scores do not count:
    PyTorch's fused attention does not keep them.
    """
    return shape.layers * tokens * (10 * shape.width + 2 * shape.intermediate) * itemsize
