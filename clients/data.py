"""Which examples belong to the client at a node."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
from flwr.app import Context

#: Key of the node config that names the partition a simulation made (see simulations.partitioning).
PARTITION_FILE = "partition-file"


def train_rows(context: Context) -> np.ndarray:
    """Return the indices of this client's training examples in the task, int64 [n]."""
    partition = _partition(str(context.node_config[PARTITION_FILE]))
    return partition[int(context.node_config["partition-id"])]


def dev_rows(context: Context, examples: int) -> np.ndarray:
    """Return the indices of this client's share of ``examples`` dev examples.

    The shares of all clients are disjoint and make up the whole dev set.
    """
    config = context.node_config
    return np.arange(int(config["partition-id"]), examples, int(config["num-partitions"]))


@lru_cache(maxsize=2)
def _partition(path: str) -> list[np.ndarray]:
    clients = json.loads(Path(path).read_text(encoding="utf-8"))["clients"]
    return [np.asarray(rows, dtype=np.int64) for rows in clients]
