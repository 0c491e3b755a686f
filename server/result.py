"""What a finished run says of itself: result.json and the description of its task vector."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from fedpeft.runtime import Runtime
from fedpeft.vectorfile import vector_digest
from server.ledger import total_bytes
from server.runfolder import Checkpoint, RunFolder


def describe_result(
    runtime: Runtime,
    folder: RunFolder,
    state: Checkpoint,
    last: dict[str, Any],
    digests: Mapping[str, str],
) -> dict[str, Any]:
    """Return the content of result.json; the design fixes its keys.

    Args:
        runtime: of the run.
        folder: of the run.
        state: after the last round.
        last: the line of the last round, measured.
        digests: what all nodes had in common, see ``Runtime.identity``.
    """
    experiment, layout, rounds = runtime.experiment, runtime.trainable.shared, folder.rounds()
    bytes_total = total_bytes(rounds)
    updates = [line["up"] for line in folder.sent() if line["kind"] == "train" and "up" in line]
    messages = [up["message"] for up in updates if up["payload"]]  # an error reply has none
    itemsize = np.dtype(experiment.wire.codec).itemsize
    head = layout.head_size * itemsize
    bytes_total["per_client_round_up"] = {
        "payload": layout.size * itemsize,
        "message": round(np.mean(messages)) if messages else 0,
        "method": layout.size * itemsize - head,
        "head": head,
    }
    return {
        "task": experiment.task.name,
        "method": experiment.method.name,
        "backbone": experiment.backbone,
        "metric": runtime.info.metric,
        "score": last["score"],
        "metrics": last["metrics"],
        "rounds": state.round,
        "clients": experiment.federation.clients,
        "cohort": int(folder.pinned().get("cohort", 1)),  # a simulation's; its bits depend on it
        "vector_size": layout.size,
        "head_size": layout.head_size,
        "bytes": bytes_total,
        "epsilon": last["epsilon"],
        "privacy": last["privacy"],
        "seconds": state.seconds,
        "digests": {
            **{name: digests[name] for name in ("projection", "layout", "backbone", "experiment")},
            "vector": vector_digest(state.vector),
        },
        "versions": _versions(),
        "seed": experiment.seed,
    }


def _versions() -> dict[str, str]:
    names = ("fedpeft", "flwr", "torch", "transformers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
