"""A gateway and a SuperLink, real processes, with registered nodes and a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node as ProtoNode
from gateways import PATIENCE, Client, Node, make_nodes, register
from servers import server_folder, superlink
from superlinks import SuperLinkState

from deployment import server_up as up
from deployment.hosting.processes import Supervisor
from deployment.hosting.timing import Timing

PULL = "/v1/fleet/pull-messages"


@dataclass
class Linked(Client):
    """A gateway and a SuperLink with registered nodes."""

    link: SuperLinkState
    nodes: list[Node]
    run: int
    superlink: int  # its process
    supervisor: Supervisor

    def pull(self, node: Node, client: httpx.Client, age: float = 0.0) -> list[str]:
        """Return the ids of the messages that a pull gets."""
        body = PullMessagesRequest(node=ProtoNode(node_id=node.node_id)).SerializeToString()
        answer = client.post(PULL, content=body, headers=node.headers(age))
        assert answer.status_code == 200, answer.text
        messages = PullMessagesResponse.FromString(answer.content).messages_list
        return [message.metadata.message_id for message in messages]

    def confirm(self, node: Node, client: httpx.Client, message: str) -> None:
        request = ConfirmMessageReceivedRequest(
            node=ProtoNode(node_id=node.node_id), run_id=self.run, message_object_id=message
        )
        path = "/v1/fleet/confirm-message-received"
        answer = client.post(path, content=request.SerializeToString(), headers=node.headers())
        assert answer.status_code == 200, answer.text


@contextmanager
def linked(folder: Path, count: int) -> Iterator[Linked]:
    """Run a gateway and a SuperLink with ``count`` nodes in a folder."""
    state = server_folder(folder)
    link = SuperLinkState(state.path / "superlink.db")
    nodes = make_nodes(folder, *(f"node{number}" for number in range(count)))
    for node in nodes:
        node.node_id = link.register(node.pem)
    register(state.path, nodes)
    run = link.start_run()
    supervisor = Supervisor(
        [up.gateway(state, 64)], logging.getLogger("test"), Timing().scaled(0.1)
    )
    ready = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(ready.set,))
    with superlink(state) as process:
        thread.start()
        try:
            assert ready.wait(PATIENCE)
            yield Linked(state, link, nodes, run, process.pid, supervisor)
        finally:
            supervisor.stop()
            thread.join(PATIENCE)
