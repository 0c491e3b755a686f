"""The handshake refuses a node that differs and names what differs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from messaging import changed

from clients.app import app as client_app
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.runtime import COMMON, runtime_of
from fedpeft.wire.failures import CODES, FailureKind
from fedpeft.wire.messages import HandshakeReply
from server.exchange.byte_ledger import ByteLedger
from server.members.handshake import Report, with_backbone
from server.members.nodes import Nodes
from server.members.participants import Participants
from server.members.registry import Registered
from simulations.engines.grid import NodeConfig
from simulations.engines.local import LocalGrid

Quick = Callable[..., Experiment]
Federate = Callable[..., RunFolder]
Spoil = Callable[[Message], Message]
HANDSHAKE = "query.handshake"


KEYS = {entry.name: entry.metadata["key"] for entry in fields(HandshakeReply)}


def saying(**said: Any) -> Spoil:
    """Return a spoiler that changes what a node says of itself."""

    def spoil(reply: Message) -> Message:
        return changed(reply, **{KEYS[name]: value for name, value in said.items()})

    return spoil


def without(key: str) -> Spoil:
    """Return a spoiler that leaves something out of what a node says."""

    def spoil(reply: Message) -> Message:
        return changed(reply, **{KEYS[key]: None})

    return spoil


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.parametrize("key", ["version", "backbone", "projection", "layout", "experiment"])
def test_a_node_that_differs_is_refused_once_and_the_others_continue(
    quick: Quick,
    federate: Federate,
    read_lines: Callable[[Path], list[dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    key: str,
) -> None:
    other: Any = "0123456789abcdef" if key == "version" else bytes.fromhex("0123456789abcdef")
    folder = federate(quick(), saying(**{key: other}), HANDSHAKE, client=1)
    assert [line["clients"] for line in folder.rounds()] == [2, 2]
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith(f"refused client 1: {key} is 0123456789ab, expected ")
    assert folder.noted() == warnings(caplog)
    lines = read_lines(folder.path / "bytes.jsonl")
    refused = [(line["round"], line["kind"]) for line in lines if line["client"] < 0]
    assert refused == [(1, "handshake")]
    assert 1 not in [line["client"] for line in lines]


def test_a_run_that_needs_a_refused_node_stops_and_names_all_differences(
    quick: Quick, federate: Federate
) -> None:
    spoil = saying(version="0.0.1", backbone=b"\xab\xcd")
    with pytest.raises(RunFailed) as stopped:
        federate(quick("federation.min_success=3"), spoil, HANDSHAKE, client=2)
    text = str(stopped.value)
    assert text.startswith("2 clients can take part, federation.min_success is 3: client 2: ")
    assert "version is 0.0.1, expected 0.1.0" in text
    assert "backbone is abcd, expected " in text
    assert "layout" not in text


def test_weights_in_another_form_are_refused_unless_allowed(
    quick: Quick, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    folder = federate(quick(), saying(weights="int8"), HANDSHAKE, client=1)
    assert [line["clients"] for line in folder.rounds()] == [2, 2]
    (warning,) = warnings(caplog)
    assert "client 1 holds the frozen weights in int8, the server in float32; start" in warning
    assert "federation.mixed_weights = true" in warning
    mixed = quick("federation.mixed_weights=true")
    folder = federate(mixed, saying(weights="int8"), HANDSHAKE, client=1, out="mixed")
    assert [line["clients"] for line in folder.rounds()] == [3, 3]


def test_unknown_weights_are_refused_and_not_quoted(
    quick: Quick, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    mixed = quick("federation.mixed_weights=true")
    federate(mixed, saying(weights="my secret"), HANDSHAKE, client=1)
    (warning,) = warnings(caplog)
    assert "weights is none of float32, bfloat16, int8, int4" in warning
    assert "secret" not in warning


@pytest.mark.parametrize("key", ["version", "layout"])
def test_a_node_that_does_not_report_its_identity_is_refused(
    quick: Quick, federate: Federate, key: str
) -> None:
    with pytest.raises(RunFailed, match=f"client 0: {key} is None, expected"):
        federate(quick("federation.min_success=3"), without(key), HANDSHAKE, client=0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (without("client"), "client -1 with 20 examples does not belong here"),
        (without("examples"), "client 1 with 0 examples does not belong here"),
        (saying(client="one"), "ValueError: client is str, expected int"),
        (saying(client=[1, 2]), "ValueError: client is list, expected int"),
        (saying(client=3), "client 3 with 20 examples does not belong here"),
        (saying(client=-1), "client -1 with 20 examples does not belong here"),
        (saying(examples=0), "client 1 with 0 examples does not belong here"),
    ],
)
def test_a_malformed_handshake_is_refused(
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
        RunFailed, match=r"min_success is 3: node 1001: error 2: OSError at test_handshake.py:\d+$"
    ):
        federate(quick("federation.min_success=3"), failing_first(9), HANDSHAKE, client=1)


def test_a_failed_handshake_is_repeated_in_the_next_round(quick: Quick, federate: Federate) -> None:
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


def test_nodes_that_leave_shake_hands_again_when_they_return(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]]
) -> None:
    experiment = quick()
    grid = ComingAndGoing(client_app, node_configs(experiment))
    participants = Participants(Nodes(grid), experiment, identity={})
    participants.refresh(ByteLedger())
    assert sorted(participants.clients) == [0, 1, 2]
    grid.offline = frozenset({1001})
    ledger = ByteLedger()
    participants.refresh(ledger)
    assert sorted(participants.clients) == [0, 2]
    assert not ledger.entries
    grid.offline = frozenset()
    participants.refresh(ledger)
    assert sorted(participants.clients) == [0, 1, 2]
    assert {client for _, client, _ in ledger.entries} == {1}


class BackSoon(LocalGrid):
    """A local grid with a node that is away for the first looks."""

    looks = 0

    def get_node_ids(self) -> list[int]:
        self.looks += 1
        return [node for node in super().get_node_ids() if node != 1001 or self.looks > 3]


def test_the_first_round_of_a_process_waits_for_a_node_that_is_back_soon(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.members.members._INTERVAL", 0.01)
    experiment = quick("federation.min_success=1", "federation.node_wait=3600")
    registered = [Registered(f"n{n}", n, "", "2026") for n in (1000, 1001, 1002)]

    def participants() -> Participants:
        grid = BackSoon(client_app, node_configs(experiment))
        return Participants(Nodes(grid, lambda: registered), experiment, identity={})

    first = participants()
    first.refresh(ByteLedger())
    assert sorted(first.clients) == [0, 1, 2]
    later = participants()
    later.began = True  # a later round goes on with those that are there
    later.refresh(ByteLedger())
    assert sorted(later.clients) == [0, 2]


def test_the_first_round_goes_on_without_a_node_after_the_wait(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.members.members._INTERVAL", 0.01)
    experiment = quick("federation.min_success=2", "federation.node_wait=0.05")
    registered = [Registered(f"n{n}", n, "", "2026") for n in (1000, 1001, 1002)]
    grid = BackSoon(client_app, node_configs(experiment))
    grid.looks = -(10**9)  # it never comes back
    participants = Participants(Nodes(grid, lambda: registered), experiment, identity={})
    participants.refresh(ByteLedger())
    assert sorted(participants.clients) == [0, 2]


class Declining(ClientApp):
    """The real client app, but client 1 refuses, as by the rules of its node."""

    asked = 0

    def __call__(self, message: Message, context: Context) -> Message:
        if context.node_config["partition-id"] != 1:
            return client_app(message, context)
        self.asked += 1
        return Message(Error(CODES[FailureKind.UNCHARGED], "not here"), reply_to=message)


def test_the_first_round_does_not_wait_for_a_node_that_declines(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]]
) -> None:
    experiment = quick("federation.min_success=1", "federation.node_wait=3600")
    registered = [Registered(f"n{n}", n, "", "2026") for n in (1000, 1001, 1002)]
    app = Declining()
    grid = LocalGrid(app, node_configs(experiment))
    participants = Participants(Nodes(grid, lambda: registered), experiment, identity={})
    participants.refresh(ByteLedger())
    assert sorted(participants.clients) == [0, 2] and app.asked == 1
    participants.refresh(ByteLedger(), 2)
    assert sorted(participants.clients) == [0, 2] and app.asked == 2  # once a round


def test_a_refused_node_that_reconnects_shakes_hands_again(
    quick: Quick, node_configs: Callable[..., list[NodeConfig]]
) -> None:
    """It may have been mended in between."""
    experiment = quick()
    grid = ComingAndGoing(client_app, node_configs(experiment))
    refused = {1002: "client 2: version is 0.0.1"}
    participants = Participants(Nodes(grid), experiment, identity={}, refused=refused)
    participants.refresh(ByteLedger())
    assert sorted(participants.clients) == [0, 1]
    grid.offline = frozenset({1002})
    participants.refresh(ByteLedger())
    grid.offline = frozenset()
    participants.refresh(ByteLedger())
    assert sorted(participants.clients) == [0, 1, 2]


@pytest.fixture
def plan(quick: Quick) -> dict[str, str]:
    """The identity of a server that loads no backbone."""
    return runtime_of(quick("federation.evaluation=clients")).plan


def report(**identity: str) -> Report:
    """Return what a node reports."""
    return Report(0, 1, identity, unknown=False)


def test_a_server_without_a_backbone_takes_the_one_of_most_nodes(plan: dict[str, str]) -> None:
    replies = [report(**plan, backbone=name) for name in ("b", "a", "b")]
    assert with_backbone(plan, replies) == {**plan, "backbone": "b"}
    assert {*plan, "backbone"} == set(COMMON)


def test_a_known_backbone_is_kept_whatever_nodes_report(plan: dict[str, str]) -> None:
    identity = {**plan, "backbone": "b"}
    assert with_backbone(identity, [report(**plan, backbone="c")] * 3) == identity


def test_nodes_that_differ_otherwise_have_no_vote_on_the_backbone(plan: dict[str, str]) -> None:
    other = {**plan, "version": "0", "backbone": "x"}
    replies = [report(**other), report(**other), report(**plan, backbone="a"), report()]
    assert with_backbone(plan, replies)["backbone"] == "a"
    assert with_backbone(plan, replies[:2]) == plan


def test_a_server_that_does_not_evaluate_needs_no_backbone(
    quick: Quick, federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    """Its three nodes have the same, and one that says another is refused."""
    other = saying(backbone=b"\xbb")
    folder = federate(quick("federation.evaluation=clients"), other, HANDSHAKE, 1)
    assert [line["clients"] for line in folder.rounds()] == [2, 2]
    assert "refused client 1: backbone is bb, expected" in warnings(caplog)[0]
