"""Who may take part: the handshake refuses a node that differs and names what differs."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from clients.app import app as client_app
from fedpeft.config import Experiment
from fedpeft.errors import RunFailed
from fedpeft.runtime import COMMON, runtime_of
from server.flower import give_id
from server.ledger import ByteLedger
from server.nodes import Nodes
from server.runfolder import RunFolder
from simulations.local import LocalGrid, NodeConfig

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
Spoil = Callable[[Message], Message]
HANDSHAKE = "query.handshake"


def saying(**said: Any) -> Spoil:
    """Return a spoiler that changes what a node says of itself."""

    def spoil(reply: Message) -> Message:
        reply.content["node"] = ConfigRecord({**reply.content["node"], **said})
        return reply

    return spoil


def without(key: str) -> Spoil:
    """Return a spoiler that leaves something out of what a node says."""

    def spoil(reply: Message) -> Message:
        del reply.content["node"][key]
        return reply

    return spoil


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("key", ["version", "backbone", "projection", "layout", "experiment"])
def test_a_node_that_differs_is_refused_once_and_the_rest_go_on(
    quick: Quick,
    federate: Federate,
    read_lines: Callable[[Path], list[dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    key: str,
) -> None:
    folder = federate(quick(), saying(**{key: "0123456789abcdef"}), HANDSHAKE, client=1)
    assert [line["clients"] for line in folder.rounds()] == [2, 2]
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith(f"refused client 1: {key} is 0123456789ab, expected ")
    assert folder.noted() == warnings(caplog)
    lines = read_lines(folder.path / "bytes.jsonl")
    refused = [(line["round"], line["kind"]) for line in lines if line["client"] < 0]
    assert refused == [(1, "handshake")]
    assert 1 not in [line["client"] for line in lines]


def test_a_run_that_needs_the_node_stops_and_names_all_that_differs(
    quick: Quick, federate: Federate
) -> None:
    spoil = saying(version="0.0.1", backbone="abc")
    with pytest.raises(RunFailed) as stopped:
        federate(quick("federation.min_success=3"), spoil, HANDSHAKE, client=2)
    text = str(stopped.value)
    assert text.startswith("2 clients can take part, federation.min_success is 3: client 2: ")
    assert "version is 0.0.1, expected 0.1.0" in text
    assert "backbone is abc, expected " in text
    assert "layout" not in text


@pytest.mark.parametrize("key", ["version", "layout"])
def test_a_node_that_does_not_say_is_refused(quick: Quick, federate: Federate, key: str) -> None:
    with pytest.raises(RunFailed, match=f"client 0: {key} is None, expected"):
        federate(quick("federation.min_success=3"), without(key), HANDSHAKE, client=0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without("client"), "KeyError: 'client'"),
        (without("examples"), "KeyError: 'examples'"),
        (saying(client="one"), "ValueError"),
        (saying(client=[1, 2]), "TypeError"),
        (saying(client=3), "client 3 with 40 examples does not belong here"),
        (saying(client=-1), "client -1 with 40 examples does not belong here"),
        (saying(examples=0), "client 1 with 0 examples does not belong here"),
    ],
)
def test_a_handshake_that_makes_no_sense_is_refused(
    quick: Quick, federate: Federate, spoil: Spoil, reason: str
) -> None:
    with pytest.raises(RunFailed, match=reason):
        federate(quick("federation.min_success=3"), spoil, HANDSHAKE, client=1)
    assert federate(quick(), spoil, HANDSHAKE, client=1, out="two").rounds()[0]["clients"] == 2


def test_two_nodes_cannot_be_the_same_client(quick: Quick, federate: Federate) -> None:
    with pytest.raises(RunFailed, match="node 1002: client 1 is already taken"):
        federate(quick("federation.min_success=3"), partitions=[0, 1, 1])
    folder = federate(quick(), partitions=[0, 1, 1, 2], out="rest")
    assert [line["clients"] for line in folder.rounds()] == [3, 3]


def failing_first(times: int) -> Spoil:
    """Return a spoiler that raises so many times, then leaves replies as they are."""
    left = iter(range(times))

    def spoil(reply: Message) -> Message:
        if next(left, None) is not None:
            raise OSError("the secret file /home/me/patients.csv is locked")
        return reply

    return spoil


def test_a_handshake_that_fails_names_the_node_and_the_error_not_its_text(
    quick: Quick, federate: Federate
) -> None:
    with pytest.raises(
        RunFailed, match=r"min_success is 3: node 1001: error 2: OSError at test_nodes.py:\d+$"
    ):
        federate(quick("federation.min_success=3"), failing_first(9), HANDSHAKE, client=1)


def test_a_handshake_that_failed_is_tried_again_in_the_next_round(
    quick: Quick, federate: Federate
) -> None:
    folder = federate(quick("federation.rounds=3"), failing_first(2), HANDSHAKE, client=1)
    assert [line["clients"] for line in folder.rounds()] == [2, 2, 3]
    (noted,) = folder.noted()
    assert noted.startswith("no handshake: node 1001: error 2: OSError at ")


def test_a_client_that_failed_shakes_hands_before_it_trains_again(
    quick: Quick, federate: Federate, read_lines: Callable[[Path], list[dict[str, Any]]]
) -> None:
    folder = federate(quick("federation.rounds=3"), failing_first(1), client=2, rounds=[1])
    lines = read_lines(folder.path / "bytes.jsonl")
    shaken = [(line["round"], line["client"]) for line in lines if line["kind"] == "handshake"]
    assert shaken == [(1, 0), (1, 1), (1, 2), (2, 2)]


def test_too_few_nodes_stop_the_run_after_node_wait(quick: Quick, federate: Federate) -> None:
    started = time.monotonic()
    with pytest.raises(RunFailed, match=r"only 2 of 3 nodes connected within 0.4 s"):
        federate(quick("federation.node_wait=0.4"), partitions=[0, 1])
    assert time.monotonic() - started >= 0.4


class ComingAndGoing(LocalGrid):
    """A local grid whose nodes can be offline."""

    offline: frozenset[int] = frozenset()

    def get_node_ids(self) -> list[int]:
        return [node for node in super().get_node_ids() if node not in self.offline]


def test_nodes_that_leave_are_forgotten_and_shaken_hands_with_when_back(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]]
) -> None:
    experiment = quick()
    grid = ComingAndGoing(client_app, node_configs(experiment))
    nodes = Nodes(grid, experiment, identity={})
    nodes.refresh(ByteLedger())
    assert sorted(nodes.clients) == [0, 1, 2]
    grid.offline = frozenset({1001})
    ledger = ByteLedger()
    nodes.refresh(ledger)
    assert sorted(nodes.clients) == [0, 2]
    assert not ledger.entries
    grid.offline = frozenset()
    nodes.refresh(ledger)
    assert sorted(nodes.clients) == [0, 1, 2]
    assert {client for _, client, _ in ledger.entries} == {1}


def test_a_refused_node_that_comes_back_is_asked_again(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]]
) -> None:
    """It may have been mended in between."""
    experiment = quick()
    grid = ComingAndGoing(client_app, node_configs(experiment))
    nodes = Nodes(grid, experiment, {}, refused={1002: "client 2: version is 0.0.1"})
    nodes.refresh(ByteLedger())
    assert sorted(nodes.clients) == [0, 1]
    grid.offline = frozenset({1002})
    nodes.refresh(ByteLedger())
    grid.offline = frozenset()
    nodes.refresh(ByteLedger())
    assert sorted(nodes.clients) == [0, 1, 2]


def test_without_a_backbone_the_server_takes_that_of_most_nodes(
    quick: Quick,
) -> None:
    experiment = quick("federation.evaluation=clients", "federation.clients=3")
    runtime = runtime_of(experiment.to_toml())
    replies = [answer({**runtime.plan, "backbone": name}) for name in ("b", "a", "b")]
    nodes = Nodes(LocalGrid(client_app, []), experiment, dict(runtime.plan))
    nodes._agree(replies)
    assert nodes.identity == {**runtime.plan, "backbone": "b"}
    assert set(nodes.identity) == set(COMMON) == set(runtime.identity)
    nodes._agree([answer({**runtime.plan, "backbone": "c"})] * 3)
    assert nodes.identity["backbone"] == "b"  # once known, it stays


def answer(said: dict[str, Any]) -> Message:
    """Return a node's reply to a handshake."""
    asked = Message(RecordDict(), dst_node_id=1, message_type=HANDSHAKE)
    give_id(asked)
    return Message(RecordDict({"node": ConfigRecord(said)}), reply_to=asked)


def test_a_node_that_differs_otherwise_has_no_say_in_the_backbone(quick: Quick) -> None:
    experiment = quick("federation.evaluation=clients", "federation.clients=3")
    plan = runtime_of(experiment.to_toml()).plan
    nodes = Nodes(LocalGrid(client_app, []), experiment, dict(plan))
    other = {**plan, "version": "0", "backbone": "x"}
    nodes._agree([answer(other), answer(other), answer({**plan, "backbone": "a"}), answer({})])
    assert nodes.identity["backbone"] == "a"


def test_a_run_that_the_clients_evaluate_needs_no_backbone_at_the_server(
    quick: Quick, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    """Its three nodes have the same, and one that says another is refused."""
    folder = federate(quick("federation.evaluation=clients"), saying(backbone="b"), HANDSHAKE, 1)
    assert [line["clients"] for line in folder.rounds()] == [2, 2]
    assert "refused client 1: backbone is b, expected" in warnings(caplog)[0]
