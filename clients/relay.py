"""The ClientApp that Flower starts for every message: it passes the message to the worker.

To start fast, it imports very little. If the worker does not answer, this process answers the
message by the same code, with the same bits. Each message is written down, see ``clients.traffic``.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.channel import ask
from clients.flower import context_from_wire, context_to_wire, from_wire, to_wire
from clients.folder import NodeFolder
from clients.traffic import record
from clients.worker import answer
from fedpeft.hosting.bundle import run_name

app = ClientApp()
log = logging.getLogger(__name__)


@app.query("handshake")
@app.query("prepare")
@app.query("unmask")
@app.train()
@app.evaluate()
def relay(message: Message, context: Context) -> Message:
    """Return the worker's reply; without a worker, answer in this process.

    An exception becomes an error reply: Flower would send its text to the server.
    """
    begun = time.monotonic()
    try:
        reply = _reply(message, context)
    except BaseException as error:
        from clients.errors import ends_process, error_reply  # not needed for most messages

        if ends_process(error):
            raise
        reply = error_reply(error, message)
    _record(message, context, reply, time.monotonic() - begun)
    return reply


def _record(message: Message, context: Context, reply: Message, seconds: float) -> None:
    with suppress(Exception):  # an incomplete record is better than a lost reply
        down, up = len(to_wire(message)), len(to_wire(reply))
        name = run_name(context.run_config)
        record(_folder(context), message, reply, down, up, seconds, name)


def _folder(context: Context) -> NodeFolder:
    return NodeFolder(Path(str(context.node_config["state"])))


def _reply(message: Message, context: Context) -> Message:
    folder, request = _folder(context), (to_wire(message), context_to_wire(context))
    try:
        # After the message's time to live, the server no longer waits for a reply.
        reply, changed = ask(folder.socket, request, timeout=message.metadata.ttl)
    except OSError as error:
        log.warning("no answer from the worker (%s): this process answers instead", error)
        return answer(message, context)
    context.state = context_from_wire(changed).state
    return from_wire(reply)
