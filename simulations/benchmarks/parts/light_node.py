"""A node as a thread: Flower's connection through a tunnel, and answers of the client app.

It sends what a SuperNode sends, without its other processes: 50 real nodes would need 30 GB, and
their idle processes more than this machine's cores.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects
from flwr.supernode.fleet_http_connection import http_request_response

from clients.app import app
from clients.folder import NodeFolder, NodeSettings
from deployment.node.up import make_certificate
from fedpeft.page.ports import LOOPBACK, free_port, speaks_tls

_PAUSE = 3.0  # seconds after a pull without a message, as in the SuperNode
_ANSWERING = threading.Lock()  # the client app answers one message at a time


class LightNode:
    """A registered node that answers until the process ends.

    Args:
        state: its state folder, which exists.
        settings: of its data.
        key: file of its private key.
        ca: file of the certificate of the server's authority.
        port: of the server's gateway on this machine.
    """

    def __init__(self, state: Path, settings: NodeSettings, key: Path, ca: Path, port: int):
        self._folder, self._key = NodeFolder(state), key
        settings.write(state)
        make_certificate(self._folder.runtime)
        self._port = free_port()
        command = [
            sys.executable,
            "-P",
            "-m",
            "deployment.tunnel.tunnel",
            str(state),
            str(self._port),
        ]
        self.tunnel = subprocess.Popen([*command, "localhost", str(port), str(ca)])
        self.failed: Exception | None = None
        self.ended = False
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        key = load_ssh_private_key(self._key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        ca = self._folder.runtime / "ca.crt"
        while not speaks_tls(LOOPBACK, self._port, ca, LOOPBACK):
            time.sleep(0.2)
        address, keys = f"{LOOPBACK}:{self._port}", (key, key.public_key())
        try:
            with http_request_response(address, False, ca.read_bytes(), keys) as connection:
                node_id, receive, *rest = connection
                context = Context(0, node_id, {"state": str(self._folder.path)}, RecordDict(), {})
                while self.tunnel.poll() is None:
                    if (received := receive()) is None:
                        time.sleep(_PAUSE)
                    else:
                        _answer(context, *received, *rest)
        except Exception as error:
            self.failed = error
        self.ended = True  # Flower logs an error of its connection, and leaves the context


def _answer(
    context: Context,
    message: Message,
    tree: Any,
    send: Callable[..., Any],
    get_run: Callable[..., Any],
    get_fab: Callable[..., Any],
    pull: Callable[..., Any],
    push: Callable[..., Any],
    confirm: Callable[..., Any],
) -> None:
    """Fetch a message, and send the client app's reply, as the SuperNode does."""
    run, name = message.metadata.run_id, message.metadata.message_id
    if context.run_id != run:
        get_fab(get_run(run).fab_hash, run)
        context.run_id = run
    names = [part.object_id for part in iterate_object_tree(tree)]
    contents = pull_objects(names, lambda part: pull(run, part))
    confirm(run, name)
    whole = inflate_object_from_contents(name, contents)
    assert isinstance(whole, Message)
    whole.metadata.__dict__["_message_id"] = name
    with _ANSWERING:
        reply = app(whole, context)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = {part: item.deflate() for part, item in get_all_nested_objects(reply).items()}
    wanted, session = send(reply, get_object_tree(reply), 0.0)
    for part in wanted:
        push(run, session, part, objects[part])
