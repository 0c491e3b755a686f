"""The only file of the client side that uses private parts of Flower; a contract test covers it.

Written for flwr 1.41 and 1.42. All other files use the public flwr.app and flwr.clientapp.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage


def to_wire(message: Message) -> bytes:
    """Serialize a message."""
    return message_to_proto(message).SerializeToString()


def from_wire(data: bytes) -> Message:
    """Parse a serialized message; replies to it are addressed as in Flower's own process.

    Flower's process also sets ``TaskIdentity``, which only new messages need.
    """
    return message_from_proto(ProtoMessage.FromString(data))


def context_to_wire(context: Context) -> bytes:
    """Serialize a context with its state."""
    return context_to_proto(context).SerializeToString()


def context_from_wire(data: bytes) -> Context:
    """Parse a serialized context."""
    return context_from_proto(ProtoContext.FromString(data))
