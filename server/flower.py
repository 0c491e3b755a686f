"""The only module that uses private parts of Flower; a contract test checks their behavior.

Written against flwr 1.41. Everything else uses the public flwr.app, flwr.serverapp and
flwr.clientapp.
"""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Callable

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpeft.hosting.bundle import checked_install
from fedpeft.profiling import phase

log = logging.getLogger(__name__)


def message_bytes(message: Message) -> int:
    """Return the exact size of a message as it is serialized for the wire, in bytes."""
    return message_to_proto(message).ByteSize()


def give_id(message: Message) -> str:
    """Give a message a new id, as the sender's grid must, and return it.

    The id is as long as in a deployment, a SHA-256 in hexadecimal, so message sizes are the same.
    """
    message.metadata.__dict__["_message_id"] = secrets.token_hex(32)
    return message.metadata.message_id


def to_wire(message: Message) -> bytes:
    """Serialize a message."""
    with phase("serialisation"):
        return message_to_proto(message).SerializeToString()


def from_wire(data: bytes) -> Message:
    """Parse a serialized message."""
    with phase("serialisation"):
        return message_from_proto(ProtoMessage.FromString(data))


def new_run() -> Run:
    """Start a run in this process: messages created from now on carry its id."""
    # Always 63 bits: a shorter id would make messages a byte smaller.
    run = Run.create_empty(run_id=secrets.randbits(62) | 1 << 62)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run.run_id, 1
    return run


def tolerant(inflate: Callable[..., object]) -> Callable[..., Message]:
    """Return Flower's function that parses a pulled reply, without exceptions.

    Flower's grid stores what a site pushes without parsing it, and pulls replies of several sites
    at once: an exception would end the run. A reply that cannot be read becomes an error that
    replies to no message, as if the site had not answered.
    """

    def inflate_or_skip(object_id: str, contents: dict[str, bytes]) -> Message:
        try:
            message = inflate(object_id, contents)
            if not isinstance(message, Message):
                raise TypeError("the root of the pulled objects is not a message")
            message_bytes(message)  # fails for content that is not made of records
            return message
        except Exception as error:  # a site may send anything
            log.warning("skipped a reply that cannot be read (%s)", type(error).__name__)
            return _unreadable()

    return inflate_or_skip


def _unreadable() -> Message:
    metadata = Metadata(0, "", 0, 0, "", "", 0.0, 0.0, "query")
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, "cannot be read"))


def run_task(on_start: Callable[[str], object]) -> None:
    """Run one ServerApp, like Flower's ``flwr-serverapp`` with the arguments in ``sys.argv``.

    Unlike Flower's program, fail the run if its bundle has code, see
    :func:`fedpeft.hosting.bundle.check_bundle`, and skip replies that cannot be read, see
    :func:`tolerant`.

    Args:
        on_start: called with the run's id before the bundle is read.

    Raises:
        SystemExit: always, with Flower's exit code.
    """
    from flwr.supercore.logger import FLOWER_LOGGER
    from flwr.superlink.cli import flwr_serverapp

    # The package has a function of the same name, which hides the module from `from ... import`.
    task = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    FLOWER_LOGGER.setLevel(logging.INFO)  # importing it sets the level to DEBUG
    vars(task)["install_from_fab"] = checked_install(
        task.install_from_fab, lambda: on_start(str(TaskIdentity.run_id))
    )
    grid = importlib.import_module("flwr.superlink.grid.http_grid")
    vars(grid)["inflate_object_from_contents"] = tolerant(grid.inflate_object_from_contents)
    flwr_serverapp()
