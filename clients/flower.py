"""The one place of the client side that touches private parts of Flower; a contract test pins it.

Written against flwr 1.41. Everything else uses the public flwr.app and flwr.clientapp.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable
from pathlib import Path
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

from fedpeft.bundle import ForeignBundle, check_bundle

log = logging.getLogger(__name__)


def run_task(known: Callable[[str], object]) -> None:
    """Be one ``flwr-clientapp`` process, which answers one message and ends.

    As Flower's own, with the arguments in ``sys.argv``, but for three things. A bundle is
    installed only if it brings no code (:func:`fedpeft.bundle.check_bundle`); any other gets an
    error reply that says why. No dependency is ever installed. Flower's warnings go to the root
    logger alone: what is written to the standard error reaches the node's log a second time.
    ``known`` is called with the run's id before anything of the bundle is touched.

    Raises:
        SystemExit: always; the exit code is Flower's.
    """
    from flwr.supercore.logger import FLOWER_LOGGER, console_handler
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.supernode.runtime import run_clientapp

    FLOWER_LOGGER.removeHandler(console_handler)
    FLOWER_LOGGER.setLevel(logging.WARNING)  # the rest is the same for every message
    install: Callable[..., Path] = run_clientapp.install_from_fab

    def install_if_ours(bundle: bytes, **options: Any) -> Path:
        known(str(TaskIdentity.run_id))
        try:
            check_bundle(bundle)
        except ForeignBundle as error:
            log.error("refused: %s", error)
            raise
        return install(bundle, **options)

    run_clientapp.install_from_fab = install_if_ours
    run_clientapp.run_clientapp(**_task_arguments(), runtime_dependency_install=False)


def _task_arguments() -> dict[str, Any]:
    """Return what ``flwr-clientapp`` makes of its arguments.

    Its module is not imported for that: with it comes the whole of the SuperNode, which takes
    as long again as all that a message needs.
    """
    from flwr.common.args import add_args_flwr_app_common, try_obtain_flwr_app_token
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    parser = argparse.ArgumentParser("flwr-clientapp")
    parser.add_argument("--runtime-api-address", required=True)
    add_args_flwr_app_common(parser)
    given = parser.parse_args()
    return {
        "runtime_api_address": given.runtime_api_address,
        "token": try_obtain_flwr_app_token(given),
        "insecure": given.insecure,
        "certificates": validate_and_resolve_root_certificates(
            given.root_certificates, given.insecure
        ),
        "parent_pid": given.parent_pid,
    }


def to_wire(message: Message) -> bytes:
    """Serialise a message."""
    return message_to_proto(message).SerializeToString()


def from_wire(data: bytes) -> Message:
    """Parse a serialised message; replies made to it are addressed as in Flower's own process.

    That process also sets Flower's ``TaskIdentity``, but only new messages read it, no reply does.
    """
    return message_from_proto(ProtoMessage.FromString(data))


def context_to_wire(context: Context) -> bytes:
    """Serialise a context with its state."""
    return context_to_proto(context).SerializeToString()


def context_from_wire(data: bytes) -> Context:
    """Parse a serialised context."""
    return context_from_proto(ProtoContext.FromString(data))
