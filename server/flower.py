"""The only module that uses private parts of Flower; a contract test checks their behavior.

Written against flwr 1.41 and 1.42. Everything else uses the public flwr.app, flwr.serverapp and
flwr.clientapp.
"""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpeft.hosting.bundle import checked_install
from fedpeft.profiling import phase

if TYPE_CHECKING:  # its import takes half a second
    from flwr.superlink.grid.http_grid import HttpGrid

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


class Pulling:
    """Pulls replies for Flower's grid; never waits for a site, and never raises because of one.

    Flower's own method waits up to three minutes for the objects of each reply that a site has
    announced, so one site would delay all, and an exception while parsing a reply ends the run.
    """

    def __init__(self) -> None:
        #: By the id of the message they reply to: the replies' ids and the trees of their objects.
        self._announced: dict[str, tuple[str, ObjectTree]] = {}

    def pull(self, grid: HttpGrid, awaited: Collection[str]) -> list[Message]:
        """Return the replies to the messages ``awaited`` whose objects have all arrived.

        A reply that cannot be read, or whose objects are lost, becomes an error.
        """
        self._announced = {to: self._announced[to] for to in awaited if to in self._announced}
        # Flower hands out a reply once, and says afterwards that there is none.
        if unannounced := [to for to in awaited if to not in self._announced]:
            request = PullAppMessagesRequest(message_ids=unannounced)
            response = grid._runtime_client.PullMessages(request)
            trees = response.message_object_trees
            for reply, tree in zip(response.messages_list, trees, strict=True):
                metadata = reply.metadata
                self._announced[metadata.reply_to_message_id] = metadata.message_id, tree
        pulled = {to: _pulled(grid, to, *item) for to, item in self._announced.items()}
        for to in [to for to, message in pulled.items() if message is not None]:
            del self._announced[to]
        return [message for message in pulled.values() if message is not None]


def _pulled(grid: HttpGrid, reply_to: str, message_id: str, tree: ObjectTree) -> Message | None:
    """Return a reply, or an error in its place; None if some of its objects have not arrived."""
    run_id = TaskIdentity.run_id or 0
    pull = make_pull_object_fn_protobuf(grid._runtime_client.PullObject, grid.node, run_id)
    try:
        contents = {part.object_id: pull(part.object_id) for part in iterate_object_tree(tree)}
    except ObjectUnavailableError:
        return None
    except ObjectPullError:
        return _error(reply_to, "the reply is incomplete")
    grid._runtime_client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=grid.node, run_id=run_id, message_object_id=message_id)
    )
    try:
        message = inflate_object_from_contents(message_id, contents)
        if not isinstance(message, Message):
            raise TypeError("the root of the pulled objects is not a message")
        message_bytes(message)  # fails for content that is not made of records
    except Exception as error:  # a site may send anything
        log.warning("a reply cannot be read (%s)", type(error).__name__)
        return _error(reply_to, "the reply cannot be read")
    message.metadata.__dict__["_message_id"] = message_id
    message.metadata.__dict__["_reply_to_message_id"] = reply_to  # as the SuperLink has checked it
    return message


def _error(reply_to: str, reason: str) -> Message:
    metadata = Metadata(0, "", 0, 0, reply_to, "", 0.0, 0.0, "query")
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))


def run_task(
    on_start: Callable[[str], object], on_settings: Callable[[str, dict[str, Any]], object]
) -> None:
    """Run one ServerApp, like Flower's ``flwr-serverapp`` with the arguments in ``sys.argv``.

    Unlike Flower's program, fail the run if its bundle has code, see
    :func:`fedpeft.hosting.bundle.check_bundle`, and pull replies by :class:`Pulling`.

    Args:
        on_start: called with the run's id before the bundle is read.
        on_settings: called with the run's id and its settings, long before its app is loaded.

    Raises:
        SystemExit: always, with Flower's exit code.
    """
    from flwr.supercore.logger import FLOWER_LOGGER
    from flwr.superlink.cli import flwr_serverapp
    from flwr.superlink.grid.http_grid import HttpGrid

    # The package has a function of the same name, which hides the module from `from ... import`.
    task = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    FLOWER_LOGGER.setLevel(logging.INFO)  # importing it sets the level to DEBUG
    vars(task)["install_from_fab"] = checked_install(
        task.install_from_fab,
        lambda: on_start(str(TaskIdentity.run_id)),
        lambda settings: on_settings(str(TaskIdentity.run_id), settings),
    )
    pulling = Pulling()
    HttpGrid.pull_messages = lambda grid, message_ids: pulling.pull(grid, [*message_ids])
    flwr_serverapp()


def migrations() -> Path:
    """Return Flower's folder of the migrations of a SuperLink's database."""
    from flwr.supercore.state.alembic.utils import ALEMBIC_DIR

    return ALEMBIC_DIR
