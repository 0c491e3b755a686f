"""The only file of the client side that uses private parts of Flower; a contract test covers it.

Written for flwr 1.41 and 1.42. All other files use the public flwr.app and flwr.clientapp.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from typing import Any

from flwr.app import Context, Message
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage

from deployment.hosting.bundle import checked_install


def run_task(on_start: Callable[[str], object]) -> None:
    """Answer one message like Flower's ``flwr-clientapp`` with the arguments in ``sys.argv``.

    Unlike Flower's program, refuse a bundle with code
    (:func:`deployment.hosting.bundle.check_bundle`) by an error reply with the reason, and never
    install dependencies. Flower's warnings go only to the root logger, because the node's log also
    receives the standard error.

    Args:
        on_start: called with the run's id before the bundle is read.

    Raises:
        SystemExit: always, with Flower's exit code.
    """
    from flwr.supercore.logger import FLOWER_LOGGER, console_handler
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.runtime import run_clientapp

    FLOWER_LOGGER.removeHandler(console_handler)
    FLOWER_LOGGER.setLevel(logging.WARNING)  # its information repeats with every message
    run_clientapp.install_from_fab = checked_install(
        run_clientapp.install_from_fab, lambda: on_start(str(TaskIdentity.run_id))
    )
    run_clientapp.run_clientapp(**_task_arguments(), runtime_dependency_install=False)


def _task_arguments() -> dict[str, Any]:
    """Return the arguments of ``flwr-clientapp``, parsed as Flower does.

    Importing Flower's module would import the whole SuperNode and double the start-up time.
    """
    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    parser = argparse.ArgumentParser("flwr-clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    add_args_flwr_app_common(parser)
    arguments = parser.parse_args()
    return {
        "runtime_api_address": arguments.runtime_api_address,
        "token": try_obtain_flwr_app_token(arguments),
        "insecure": arguments.insecure,
        "certificates": validate_and_resolve_root_certificates(
            arguments.root_certificates, arguments.insecure
        ),
        "parent_pid": arguments.parent_pid,
    }


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
