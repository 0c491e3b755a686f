"""Messages of server and clients in tests, as they arrive at the other side."""

from __future__ import annotations

from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fedpeft.experiment.config import Experiment
from fedpeft.version import __version__
from fedpeft.wire.formats import encode
from fedpeft.wire.messages import (
    RECORD,
    HandshakeRequest,
    MessageT,
    Request,
    from_fields,
    label,
    pack_experiment,
    to_fields,
)
from server.flower import from_wire, give_id, to_wire

# New messages belong to a run; without a process of Flower's nothing else says to which.
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1


def record(message: object) -> RecordDict:
    """Return the content of a Flower message with these fields."""
    return RecordDict({RECORD: ConfigRecord(to_fields(message))})


def arriving(kind: str, message: object, node: int = 1000) -> Message:
    """Return a Flower message of a kind as it arrives at a node."""
    made = Message(record(message), dst_node_id=node, message_type=kind)
    give_id(made)
    return from_wire(to_wire(made))


def handshake_request(experiment: Experiment | str, client: int | None = None) -> HandshakeRequest:
    """Return a handshake about an experiment, or about any text."""
    known = isinstance(experiment, Experiment)
    return HandshakeRequest(
        version=__version__,
        digest=bytes.fromhex(experiment.digest) if known else b"",
        experiment=pack_experiment(experiment.to_toml() if known else experiment),
        client=client,
    )


def request(experiment: Experiment, vector: np.ndarray, round_number: int = 1) -> Request:
    """Return a request to train or evaluate a task vector."""
    name = label(experiment.digest, "")
    sent = encode(vector, experiment.wire.down)
    return Request(vector=sent, round=round_number, label=name)


def content_of(message: Message, kind: type[MessageT]) -> MessageT:
    """Return the fields of a Flower message."""
    return from_fields(kind, message.content[RECORD])


def vector_of(reply: Message, codec: str = "float32") -> np.ndarray:
    """Return the numbers of the vector or statistics in a reply."""
    data = reply.content[RECORD]["v"]
    assert isinstance(data, bytes)
    return np.frombuffer(data, codec)


def changed(reply: Message, **values: Any) -> Message:
    """Change fields of a message by key; None removes one."""
    fields: Any = {**reply.content[RECORD], **values}
    kept = {key: value for key, value in fields.items() if value is not None}
    reply.content[RECORD] = ConfigRecord(kept)
    return reply
