"""Held pulls and repeated deliveries through a real gateway and a real SuperLink."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from flwr.proto.fleet_pb2 import PullMessagesRequest
from flwr.proto.node_pb2 import Node as ProtoNode
from gateways import Node, resident
from linked import PULL, Linked, linked

pytestmark = pytest.mark.slow
NODES = 50


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Linked]:
    with linked(tmp_path_factory.mktemp("holding"), NODES) as made:
        yield made


def seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("http2", [False, True])
def test_50_held_pulls_cost_little_and_are_answered_at_once(running: Linked, http2: bool) -> None:
    gateway = running.supervisor.pids["gateway"]
    arrived: dict[str, float] = {}
    all_sent = threading.Event()

    def one(node: Node) -> None:
        with running.http(http2) as client:
            (message,) = running.pull(node, client)
            arrived[message] = time.monotonic()
            assert all_sent.wait(20)
            running.confirm(node, client, message)

    with ThreadPoolExecutor(NODES) as pool:
        pulls = [pool.submit(one, node) for node in running.nodes]
        time.sleep(4)
        before = [seconds(pid) for pid in (gateway, running.superlink)]
        time.sleep(5)
        after = [seconds(pid) for pid in (gateway, running.superlink)]
        assert not arrived
        sent = {running.link.send(node.node_id): time.monotonic() for node in running.nodes}
        all_sent.set()
        for pull in pulls:
            pull.result(20)
    used = [(b - a) / 5 for a, b in zip(before, after, strict=True)]
    assert used[0] < 0.1 and used[1] < 0.1, used  # of one core
    assert arrived.keys() == sent.keys()
    waits = sorted(arrived[message] - sent[message] for message in sent)
    assert waits[NODES // 2] < 2.0, waits
    print("CPU of gateway and SuperLink, median and longest wait:", used, waits[25], waits[-1])
    assert resident(gateway) < 200


def test_hold_ends_before_the_signature_expires(running: Linked) -> None:
    with running.http() as client:
        start = time.monotonic()
        assert running.pull(running.nodes[0], client, age=297.0) == []
        assert 2.0 < time.monotonic() - start < 6.0


def test_message_that_waits_already_is_delivered_at_once(running: Linked) -> None:
    node = running.nodes[0]
    sent = running.link.send(node.node_id, text="waiting")
    with running.http() as client:
        start = time.monotonic()
        assert running.pull(node, client) == [sent]
        assert time.monotonic() - start < 1.0
        running.confirm(node, client, sent)


def test_later_pull_of_a_node_ends_its_earlier_one(running: Linked) -> None:
    """As after a lost connection that the gateway has not noticed."""
    node = running.nodes[1]
    with ThreadPoolExecutor() as pool, running.http() as one, running.http() as two:
        earlier = pool.submit(running.pull, node, one)
        time.sleep(1)
        later = pool.submit(running.pull, node, two)
        assert earlier.result(3) == []
        sent = running.link.send(node.node_id, text="to the later one")
        assert later.result(5) == [sent]
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
    limit = time.monotonic() + 30
    while True:
        try:
            with running.http() as client:
                assert running.pull(node, client) == [sent]
                running.confirm(node, client, sent)
            break
        except httpx.TransportError:
            assert time.monotonic() < limit
            time.sleep(0.2)
    assert running.supervisor.pids["gateway"] != before


def test_disconnected_pull_takes_no_message(running: Linked) -> None:
    node = running.nodes[4]
    with running.http(timeout=1.0) as client, pytest.raises(httpx.ReadTimeout):
        running.pull(node, client)
    time.sleep(0.5)
    sent = running.link.send(node.node_id, text="later")
    time.sleep(0.5)
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
