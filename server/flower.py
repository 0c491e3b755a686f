"""The one place that touches private parts of Flower; a contract test pins what they do.

Written against flwr 1.41. Everything else uses the public flwr.app, flwr.serverapp and
flwr.clientapp.
"""

from __future__ import annotations

import secrets

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

CLIENT_EXCEPTION = 2  # flwr.common.constant.ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def message_bytes(message: Message) -> int:
    """Return the exact size of a message as it is serialised for the wire, in bytes."""
    return message_to_proto(message).ByteSize()


def to_wire(message: Message, message_id: str = "") -> bytes:
    """Serialise a message, giving it an id first where the sender has to."""
    if message_id:
        message.metadata.__dict__["_message_id"] = message_id
    return message_to_proto(message).SerializeToString()


def from_wire(data: bytes) -> Message:
    """Parse a serialised message."""
    return message_from_proto(ProtoMessage.FromString(data))


def new_run() -> Run:
    """Start a run in this process: messages made from now on carry its id."""
    run = Run.create_empty(run_id=secrets.randbits(63))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run.run_id, 1
    return run
