"""Every value a server sends, at its extremes: the node replies, and goes on working.

The walk covers each field of each request, so a new field is attacked without a new test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context
from messaging import changed
from workers import handshake, node_context, state_folder, task_vector

from deployment.node import relay
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.wire.messages import HandshakeRequest, Request

Quick = Callable[..., Experiment]
REQUESTS = {"query.handshake": HandshakeRequest, "train": Request, "evaluate": Request}
EXTREMES: dict[type, list[Any]] = {
    int: [0, -1, 2**62, -(2**62)],
    float: [float("nan"), float("inf"), -1.0, 1.7e308],
    str: ["", "../../x", "0" * 16, "\x1b[2J\n", "9" * 100_000],
    bytes: [b"", b"\xff" * 8, b"\xff" * 328, bytes(100_000)],
}
SERVER_VALUES = [
    pytest.param(kind, entry.metadata["key"], extreme, id=f"{kind}.{entry.name}-{number}")
    for kind, request in REQUESTS.items()
    for entry in fields(request)
    for number, extreme in enumerate(EXTREMES[entry.metadata["kind"]])
]


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return node_context(state_folder(tmp_path / "state"))


@pytest.mark.parametrize(("kind", "key", "value"), SERVER_VALUES)
def test_a_node_survives_any_value_of_a_server(
    quick: Quick, context: Context, tmp_path: Path, kind: str, key: str, value: Any
) -> None:
    experiment = quick("local.steps=1")
    start = runtime_of(experiment).parameters.initial(0)
    assert relay.app(handshake(experiment), context).has_content()
    honest = handshake(experiment)
    if kind != "query.handshake":
        honest = task_vector(kind, experiment, start)
    reply = relay.app(changed(honest, **{key: value}), context)
    if reply.has_error():
        assert reply.error.reason.isprintable() and len(reply.error.reason) <= 500
    assert relay.app(handshake(experiment), context).has_content()
    assert relay.app(task_vector("train", experiment, start, 2), context).has_content()
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    files = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert [path.name for path in files if path.stat().st_mode & 0o077] == []
