"""The content of result.json."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np

from fedpeft.runtime import Runtime
from fedpeft.tasks.caveats import remarks
from fedpeft.transfer import codec_of_head, size_up
from fedpeft.vectorfile import vector_digest
from fedpeft.wire.codecs import encoded_size
from server.byte_ledger import bytes_of, total_bytes
from server.checkpoints import Checkpoint
from server.records import ResultBytes, RoundLine, RunBytes
from server.runfolder import RunFolder


def describe_result(
    runtime: Runtime,
    folder: RunFolder,
    state: Checkpoint,
    last: RoundLine,
    digests: Mapping[str, str],
    after: RunBytes,
) -> dict[str, Any]:
    """Return the content of result.json; the design fixes its keys.

    Args:
        runtime: the run's runtime.
        folder: the run's folder.
        state: the state after the last round.
        last: the line of the last round, with its evaluation.
        digests: what all nodes have in common, see ``Runtime.identity``.
        after: bytes of an evaluation after the last round.
    """
    experiment, layout, rounds = runtime.experiment, runtime.parameters.shared, folder.rounds()
    replies = [line["up"] for line in folder.sent() if line["kind"] == "train" and "up" in line]
    updates = [up for up in replies if up["payload"]]  # an error reply has none
    # Clients that hold only a prefix of z send less.
    payload = round(np.mean([up["payload"] for up in updates] or [size_up(runtime)]))
    head = round(payload * layout.head_size / layout.size)  # its share of the numbers
    if (codec := codec_of_head(runtime)) != experiment.wire.up:
        head = encoded_size(layout.head_size, codec)
    sizes: ResultBytes = {
        **total_bytes([bytes_of(folder.begun()), *(line["bytes"] for line in rounds), after]),
        "per_client_round_up": {
            "payload": payload,
            "message": round(np.mean([up["message"] for up in updates] or [0])),
            "method": payload - head,
            "head": head,
        },
    }
    return {
        "task": experiment.task.name,
        "method": experiment.method.name,
        "backbone": experiment.backbone,
        "metric": runtime.info.metric,
        "score": last["score"],
        "metrics": last["metrics"],
        "caveats": last["caveats"],
        "remarks": remarks(last["caveats"], experiment, runtime.info, last["evaluated"] or 0),
        "start": folder.started(),
        "rounds": state.round,
        "clients": experiment.federation.clients,
        "cohort": int(folder.pinned().get("cohort", 1)),  # bits of a simulation depend on it
        "vector_size": layout.size,
        "head_size": layout.head_size,
        "bytes": sizes,
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
