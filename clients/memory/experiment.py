"""The experiment of a run, kept at a node after the handshake under its label.

A simulated node keeps it in Flower's context, a deployed node on disk, because a SuperNode loses
its contexts when it ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context

from clients.data.client_data import STATE, LocalData, local_data
from clients.errors import ClientError
from clients.folder import NodeFolder
from fedpeft.files import PRIVATE, keep_newest, write_together
from fedpeft.wire.messages import LABEL_BYTES, label

_KEPT = 100  # experiments on disk


def remember(context: Context, toml: str, data: LocalData, run: str = "") -> None:
    """Keep the experiment of a run and the client's number in it."""
    name = label(data.runtime.digest, run)
    kept = {"toml": toml, "client": data.client, "run": run, "digest": data.runtime.digest}
    if STATE not in context.node_config:
        context.state[name.hex()] = ConfigRecord(kept)
        return
    path = _path(context, name)
    write_together({path: (json.dumps(kept).encode(), PRIVATE)}, replace=True)
    keep_newest(path.parent, _KEPT)


def kept_experiment(context: Context, digest: str, run: str) -> str:
    """Return the TOML of the experiment with a digest in a run; empty if it is not kept."""
    kept = _read(context, label(digest, run))
    return str(kept["toml"]) if kept and (kept["digest"], kept["run"]) == (digest, run) else ""


def recall(context: Context, name: bytes) -> LocalData:
    """Return the client's data for the experiment and run with a label.

    Raises:
        ClientError: no handshake came before, or the last one was about another experiment.
    """
    if len(name) != LABEL_BYTES:
        raise ClientError(f"the message has a label of {len(name)} bytes, expected {LABEL_BYTES}")
    kept = _read(context, name)
    if kept is None:
        raise ClientError("no handshake about this run came before the message")
    return local_data(str(kept["toml"]), context, int(kept["client"]), str(kept["run"]))


def _read(context: Context, name: bytes) -> Mapping[str, Any] | None:
    if STATE not in context.node_config:
        return context.state.get(name.hex())
    path = _path(context, name)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def _path(context: Context, name: bytes) -> Path:
    folder = NodeFolder(Path(str(context.node_config[STATE]))).experiments
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder / f"{name.hex()}.json"
