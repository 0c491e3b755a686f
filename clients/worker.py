"""The resident worker: answers a node's messages in one process that keeps backbone and data.

``python -m clients.worker STATE`` listens in the state folder. Flower starts a fresh process for
every message; that process hands its message over (:mod:`clients.relay`), and nothing is imported
or loaded again. SIGTERM ends the worker at once: the message in hand is then answered by the
process that asked, to the same bits. If that process goes away, so does the worker.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from clients.channel import Pair, listen, serve_one
from clients.state import NodeSettings, log_path, socket_path
from fedpeft.errors import UserError

if TYPE_CHECKING:
    from flwr.app import Context, Message

log = logging.getLogger("clients.worker")  # also where this module is __main__


def answer(message: Message, context: Context) -> Message:
    """Return the client app's reply to a message; ``context.state`` is changed as it wants.

    An exception becomes an error reply, as nothing of its text may reach Flower, which would send
    it to the server.
    """
    from clients.errors import ends_process, error_reply

    try:
        from clients.app import app

        return app(message, context)
    except BaseException as error:
        if ends_process(error):
            raise
        return error_reply(error, message)


def answer_wire(request: Pair) -> Pair:
    """Answer a serialised (message, context) by (reply, changed context)."""
    from clients.flower import context_from_wire, context_to_wire, from_wire, to_wire

    message, context = from_wire(request[0]), context_from_wire(request[1])
    title, run = _title(message), {"run": str(message.metadata.run_id)}
    log.info("%s: begun", title, extra=run)
    begun = time.monotonic()
    reply = answer(message, context)
    how = "an error" if reply.has_error() else "done"
    log.info("%s: %s in %.2f s", title, how, time.monotonic() - begun, extra=run)
    return to_wire(reply), context_to_wire(context)


def serve(state: Path) -> None:
    """Answer the messages of a node, one at a time, for ever.

    Raises:
        UserError: the node has no settings, or another worker answers for it.
    """
    allowed = NodeSettings.read(state).allow
    # Before anything is loaded: who asks meanwhile waits, instead of loading it all a second time.
    with listen(socket_path(state)) as listener:
        _preload(allowed)
        while True:
            try:
                serve_one(listener, answer_wire, _end)
            except Exception as error:  # of one request; the worker is there for the next
                log.warning("a request is dropped: %s", _cause(error))


def main() -> None:
    """Run the worker of the state folder named on the command line."""
    from fedpeft.logs import start_log

    # Threads that spin while they wait slow down small steps on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    state = Path(sys.argv[1])
    start_log(log_path(state), "worker")
    try:
        serve(state)
    except UserError as error:
        log.error("%s", error)
        sys.exit(1)


def _end() -> None:
    """End this process in the middle of an answer that nobody waits for.

    A computation cannot be broken off in any other way, and a run with very long rounds that was
    given up would hold the node. The supervisor starts the next worker.
    """
    log.warning("who asked has gone: this worker ends, and the next begins")
    os._exit(1)


def _preload(backbones: tuple[str, ...]) -> None:
    """Import what answers need, and load the backbones a node is meant for, if they fit."""
    begun = time.monotonic()
    import clients.app  # noqa: F401 - for its imports
    from fedpeft.backbones import load_backbone
    from fedpeft.settings import EngineSection

    engine, loaded = EngineSection(), []
    for name in backbones[: load_backbone.cache_parameters()["maxsize"]]:
        try:
            load_backbone(name, engine.device, engine.dtype)  # as an experiment asks for it
            loaded.append(name)
        except Exception as error:  # a run with another backbone can still be answered
            log.warning("backbone '%s' is not loaded: %s", name, _cause(error))
    held = ", ".join(loaded) or "no backbone yet"
    log.info("waiting for messages after %.1f s, with %s", time.monotonic() - begun, held)


def _title(message: Message) -> str:
    """Return what may be said of a message: its type, and its round where it has one."""
    kind = message.metadata.message_type
    config = message.content.get("config") if message.has_content() else None
    round = config.get("round") if config else None
    return f"{kind}, round {round}" if isinstance(round, int) else kind


def _cause(error: Exception) -> str:
    """Return the class of an error, and its text where that cannot hold a client's data."""
    safe = isinstance(error, OSError | UserError)
    return f"{type(error).__name__}: {error}" if safe else type(error).__name__


if __name__ == "__main__":
    main()
