"""Held pulls and repeated deliveries through a real gateway and a real SuperLink."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node as ProtoNode
from gateways import PATIENCE, Node, processor, resident, until
from handmade import END, data, head
from linked import PULL, Linked, linked

from deployment.gateway.holding import Holding
from deployment.gateway.mailbox import Mailbox
from deployment.server.presence import connected_nodes

pytestmark = pytest.mark.slow
NODES = 50


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with linked(tmp_path_factory.mktemp("holding"), NODES + 3) as made:
        yield made


def is_held(running: Linked, node: Node) -> bool:
    """Return whether a node is connected, and so waits for the answer to its first pull."""
    line = connected_nodes(running.state.path).get(node.node_id)
    return line is not None and line.connected


@pytest.mark.long
def test_50_held_pulls_cost_little(running: Linked) -> None:
    gateway, nodes = running.supervisor.pids["gateway"], running.nodes[:NODES]
    all_sent = threading.Event()

    def one(node: Node) -> str:
        with running.http() as client:
            while not (messages := running.pull(node, client)):  # held for its longest time
                pass
            assert all_sent.wait(PATIENCE)
            running.confirm(node, client, messages[0])
            return messages[0]

    with ThreadPoolExecutor(NODES) as pool:
        pulls = [pool.submit(one, node) for node in nodes]
        until(lambda: all(is_held(running, node) for node in nodes))
        before = [processor(pid) for pid in (gateway, running.superlink)]
        time.sleep(5)
        after = [processor(pid) for pid in (gateway, running.superlink)]
        assert not any(pull.done() for pull in pulls)
        sent = [running.link.send(node.node_id) for node in nodes]
        all_sent.set()
        assert [pull.result() for pull in pulls] == sent
    until(lambda: not any(is_held(running, node) for node in nodes))
    used = [(b - a) / 5 for a, b in zip(before, after, strict=True)]
    assert used[0] < 0.1 and used[1] < 0.1, used  # of one core
    assert resident(gateway) < 200


def test_hold_ends_before_the_signature_expires(running: Linked) -> None:
    """Later, the SuperLink would refuse it."""
    with running.http() as client:
        assert running.pull(running.nodes[0], client, age=297.0) == []


def test_message_that_waits_already_is_delivered(running: Linked) -> None:
    node = running.nodes[0]
    sent = running.link.send(node.node_id, text="waiting")
    with running.http() as client:
        assert running.pull(node, client) == [sent]
        running.confirm(node, client, sent)


def test_a_hold_ends_with_a_message_or_a_later_pull(running: Linked) -> None:
    """However long the hold."""
    first, second = (node.node_id for node in running.nodes[:2])

    async def work() -> None:
        mailbox = Mailbox(running.state.path / "superlink.db")
        holding = Holding(mailbox)
        earlier = asyncio.create_task(holding.message(first, 10 * PATIENCE))
        other = asyncio.create_task(holding.message(second, 10 * PATIENCE))
        await asyncio.sleep(0)  # both begin
        later = asyncio.create_task(holding.message(first, 10 * PATIENCE))
        assert await earlier is False
        sent = running.link.send(first, text="to the later one")
        assert await later is True
        assert await holding.message(first, 10 * PATIENCE) is True  # it waits already
        assert not other.done()
        other.cancel()
        mailbox.close()
        assert running.link.claim(first) == [sent]
        running.link.confirm(sent)

    asyncio.run(asyncio.wait_for(work(), PATIENCE))


def test_later_pull_of_a_node_ends_its_earlier_one(running: Linked) -> None:
    """As after a lost connection that the gateway has not noticed."""
    node = running.nodes[NODES]
    with ThreadPoolExecutor() as pool, running.http() as one, running.http() as two:
        earlier = pool.submit(running.pull, node, one)
        until(lambda: is_held(running, node))
        later = pool.submit(running.pull, node, two)
        assert earlier.result() == []
        sent = running.link.send(node.node_id, text="to the later one")
        assert later.result() == [sent]
        running.confirm(node, two, sent)


def test_message_lost_on_the_way_is_delivered_again(running: Linked) -> None:
    node = running.nodes[2]
    sent = running.link.send(node.node_id, text="lost")
    with running.http() as client:
        assert running.pull(node, client) == [sent]  # the node never sees it
    with running.http() as client:
        assert running.pull(node, client) == [sent]
        running.confirm(node, client, sent)
        assert running.pull(node, client, age=297.0) == []


def test_message_of_a_killed_gateway_is_delivered_again(running: Linked) -> None:
    """The gateway dies between the SuperLink's answer and the node."""
    node = running.nodes[3]
    sent = running.link.send(node.node_id, text="killed")
    assert running.link.claim(node.node_id) == [sent]
    before = running.supervisor.pids["gateway"]
    os.kill(before, signal.SIGKILL)
    until(lambda: running.supervisor.pids.get("gateway") not in (None, before))
    until(running.is_reachable)
    with running.http() as client:
        assert running.pull(node, client) == [sent]
        running.confirm(node, client, sent)


def test_disconnected_pull_takes_no_message(running: Linked) -> None:
    node, other = running.nodes[NODES + 1 : NODES + 3]
    body = PullMessagesRequest(node=ProtoNode(node_id=node.node_id)).SerializeToString()
    with running.line() as line:
        line.sendall(head(PULL, node.headers(), len(body)) + data(body) + END)
        until(lambda: is_held(running, node))
    until(lambda: not is_held(running, node))
    with ThreadPoolExecutor() as pool, running.http() as client:
        pull = pool.submit(running.pull, other, client)
        until(lambda: is_held(running, other))
        sent = running.link.send(node.node_id, text="later")
        last = running.link.send(other.node_id, text="last")
        assert pull.result() == [last]  # so the gateway has seen the message before it, too
        running.confirm(other, client, last)
    assert running.link.claim(node.node_id) == [sent]  # nobody has
    running.link.confirm(sent)


def test_node_cannot_pull_the_messages_of_another(running: Linked) -> None:
    one, two = running.nodes[5:7]
    sent = running.link.send(two.node_id, text="for two")
    body = PullMessagesRequest(node=ProtoNode(node_id=two.node_id)).SerializeToString()
    with running.http() as client:
        answer = client.post(PULL, content=body, headers=one.headers(age=297.0))
        assert answer.status_code == 401
        assert running.pull(two, client) == [sent]
        running.confirm(two, client, sent)
