"""The ClientApp that Flower starts for every message: it hands the message to the worker.

It imports next to nothing, as it is started anew each time. Without a worker, or when the worker
goes away, the message is answered here, by the same code and to the same bits.
"""

from __future__ import annotations

import logging
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from clients.channel import ask
from clients.flower import context_from_wire, context_to_wire, from_wire, to_wire
from clients.state import socket_path
from clients.worker import answer

app = ClientApp()
log = logging.getLogger(__name__)


@app.query("handshake")
@app.train()
@app.evaluate()
def relay(message: Message, context: Context) -> Message:
    """Return the worker's reply, or this process's own where no worker gives one.

    Flower would send the text of an exception to the server, whatever it quotes.
    """
    try:
        return _reply(message, context)
    except BaseException as error:
        from clients.errors import ends_process, error_reply  # not needed for most messages

        if ends_process(error):
            raise
        return error_reply(error, message)


def _reply(message: Message, context: Context) -> Message:
    path = socket_path(Path(str(context.node_config["state"])))
    request = to_wire(message), context_to_wire(context)
    try:
        # After its time to live nobody waits for a reply any more.
        reply, changed = ask(path, request, timeout=message.metadata.ttl)
    except OSError as error:
        log.warning("no answer from the worker (%s): this process answers itself", error)
        return answer(message, context)
    context.state = context_from_wire(changed).state
    return from_wire(reply)
