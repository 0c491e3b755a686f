"""The one place that touches private parts of Flower; a contract test pins what they do.

Written against flwr 1.41. Everything else uses the public flwr.app, flwr.serverapp and
flwr.clientapp.
"""

from __future__ import annotations

import importlib
import logging
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedpeft.bundle import ForeignBundle, check_bundle
from fedpeft.profiling import phase

log = logging.getLogger(__name__)


def message_bytes(message: Message) -> int:
    """Return the exact size of a message as it is serialised for the wire, in bytes."""
    return message_to_proto(message).ByteSize()


def give_id(message: Message) -> str:
    """Give a message a new id, as the sender's grid has to, and return it.

    As long as a deployment's, a SHA-256 in hexadecimal, so that message sizes are the same.
    """
    message.metadata.__dict__["_message_id"] = secrets.token_hex(32)
    return message.metadata.message_id


def to_wire(message: Message) -> bytes:
    """Serialise a message."""
    with phase("serialisation"):
        return message_to_proto(message).SerializeToString()


def from_wire(data: bytes) -> Message:
    """Parse a serialised message."""
    with phase("serialisation"):
        return message_from_proto(ProtoMessage.FromString(data))


def new_run() -> Run:
    """Start a run in this process: messages made from now on carry its id."""
    # Always 63 bits: a shorter number would make the messages of some runs a byte smaller.
    run = Run.create_empty(run_id=secrets.randbits(62) | 1 << 62)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run.run_id, 1
    return run


def run_task(known: Callable[[str], object]) -> None:
    """Be one ``flwr-serverapp`` process, which runs one ServerApp and ends.

    As Flower's own, with the arguments in ``sys.argv``, but that a bundle is installed only if
    it brings no code (:func:`fedpeft.bundle.check_bundle`); any other fails the run. ``known`` is
    called with the run's id before anything of the bundle is touched.

    Raises:
        SystemExit: always; the exit code is Flower's.
    """
    from flwr.supercore.logger import FLOWER_LOGGER
    from flwr.superlink.cli import flwr_serverapp

    # The package has a function of the same name, which hides the module from `from ... import`.
    task = importlib.import_module("flwr.superlink.runtime.run_serverapp")
    FLOWER_LOGGER.setLevel(logging.INFO)  # it is made to log all there is
    install: Callable[..., Path] = task.install_from_fab

    def install_if_ours(bundle: bytes, **options: Any) -> Path:
        known(str(TaskIdentity.run_id))
        try:
            check_bundle(bundle)
        except ForeignBundle as error:
            log.error("refused: %s", error)
            raise
        return install(bundle, **options)

    vars(task)["install_from_fab"] = install_if_ours
    flwr_serverapp()
