"""The resident worker: one process that answers a node's messages and keeps backbone and data.

``python -m clients.worker STATE`` listens in the state folder. Flower starts a fresh process for
every message; that process passes its message to the worker (:mod:`clients.relay`), so that nothing
is imported or loaded again. SIGTERM ends the worker at once: the relay then answers the message
itself, with the same bits. If the relay disconnects during a message, the worker ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from clients.channel import Pair, listen, serve_one
from clients.folder import NodeFolder, NodeSettings
from clients.traffic import round_of
from fedpeft.errors import UserError
from fedpeft.hosting.bundle import run_name

if TYPE_CHECKING:
    from flwr.app import Context, Message

log = logging.getLogger("clients.worker")  # also where this module is __main__


def answer(message: Message, context: Context) -> Message:
    """Return the client app's reply to a message; the app may change ``context.state``.

    An exception becomes an error reply: Flower would send its text to the server.
    """
    from clients.errors import ends_process, error_reply

    try:
        from clients.app import app

        return app(message, context)
    except BaseException as error:
        if ends_process(error):
            raise
        return error_reply(error, message)


def answer_wire(folder: NodeFolder, request: Pair) -> Pair:
    """Answer a serialized (message, context) with a serialized (reply, changed context)."""
    from clients.flower import context_from_wire, context_to_wire, from_wire, to_wire

    message, context = from_wire(request[0]), context_from_wire(request[1])
    title, run = _title(message), str(message.metadata.run_id)
    name = run_name(context.run_config)
    log.info("%s: begun", title, extra={"run": name or run})
    begun = time.monotonic()
    reply = answer(message, context)
    how = "an error" if reply.has_error() else "done"
    summary = f"{title}: {how} in {time.monotonic() - begun:.2f} s"
    log.info("%s", summary, extra={"run": name or run})
    _keep_last(folder.last_message, run, name, summary)
    return to_wire(reply), context_to_wire(context)


def serve(folder: NodeFolder) -> None:
    """Answer the messages of a node forever, one at a time.

    Raises:
        UserError: the node has no settings, or another worker listens in this folder.
    """
    settings = NodeSettings.read(folder.path)
    # Listen before loading: requests then wait, instead of loading everything a second time.
    with listen(folder.socket) as listener:
        _preload(settings.allow, settings.weights)
        while True:
            try:
                serve_one(listener, partial(answer_wire, folder), _end)
            except Exception as error:  # of one request; continue with the next
                log.warning("a request is dropped: %s", _cause(error))


def main() -> None:
    """Run the worker of the state folder named on the command line."""
    from fedpeft.hosting.logs import start_log

    # Threads that spin while they wait slow down small steps on a busy machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = NodeFolder(Path(sys.argv[1]))
    start_log(folder.log, "worker")
    try:
        serve(folder)
    except UserError as error:
        log.error("%s", error)
        sys.exit(1)


def _end() -> None:
    """End this process during an answer whose requester has disconnected.

    A computation cannot be stopped in any other way, and an abandoned run with very long rounds
    would block the node. The supervisor restarts the worker.
    """
    log.warning("the requester disconnected; restarting the worker")
    os._exit(1)


def _preload(backbones: tuple[str, ...], weights: str) -> None:
    """Import the client app, and load the node's backbones as far as the cache holds them."""
    begun = time.monotonic()
    import clients.app  # noqa: F401 - load it before the first message
    from fedpeft.backbones.loading import CACHED, load_backbone
    from fedpeft.experiment.settings import EngineSection

    engine, loaded = EngineSection(), []
    for name in backbones[:CACHED]:
        try:
            # As an experiment with default settings does.
            load_backbone(name, engine.device, engine.dtype, weights=weights or engine.weights)
            loaded.append(name)
        except Exception as error:  # runs with another backbone can still be answered
            log.warning("backbone '%s' is not loaded: %s", name, _cause(error))
    names = ", ".join(loaded) or "no backbone yet"
    log.info("waiting for messages after %.1f s, with %s", time.monotonic() - begun, names)


def _title(message: Message) -> str:
    """Return the type of a message, and its round if it has one."""
    kind = message.metadata.message_type
    number = round_of(message)
    return kind if number is None else f"{kind}, round {number}"


def _keep_last(path: Path, run: str, name: str, summary: str) -> None:
    """Replace the file that ``fedpeft node status`` reads; without fsync, as losing it is fine."""
    moment = datetime.now(UTC).isoformat(timespec="milliseconds")
    temporary = path.with_suffix(".tmp")
    with suppress(OSError):  # a full disk must not cost the reply
        last = {"time": moment, "run": run, "name": name, "message": summary}
        temporary.write_text(json.dumps(last))
        temporary.replace(path)


def _cause(error: Exception) -> str:
    """Return the class of an error, with its text if that cannot hold a client's data."""
    safe = isinstance(error, OSError | UserError)
    return f"{type(error).__name__}: {error}" if safe else type(error).__name__


if __name__ == "__main__":
    main()
