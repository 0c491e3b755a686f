"""Registered sites that lie to a deployed server: what they say is bounded or refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from messaging import changed, vector_of
from safetensors.numpy import load_file

from clients.app import app as client_app
from fedpeft.errors import RunFailed, UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from fedpeft.wire.messages import HandshakeReply
from server.app import app as server_app
from simulations.engines.local import run_local

NodeState = Callable[..., Path]
Spoil = Callable[[Message], Message]
HANDSHAKE = "query.handshake"


class Hostile(ClientApp):
    """The real client app; replies of some nodes to one kind of message are spoiled."""

    def __init__(self, spoils: Mapping[int, Spoil], kind: str) -> None:
        super().__init__()
        self.spoils, self.kind = spoils, kind

    def __call__(self, message: Message, context: Context) -> Message:
        reply = client_app(message, context)
        if message.metadata.message_type != self.kind or context.node_id not in self.spoils:
            return reply
        return self.spoils[context.node_id](reply)


def saying(**said: Any) -> Spoil:
    """Return a spoiler that changes what a node reports in the handshake."""
    keys = {entry.name: entry.metadata["key"] for entry in fields(HandshakeReply)}
    return lambda reply: changed(reply, **{keys[name]: value for name, value in said.items()})


def on_vector(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """Return a spoiler that changes the task vector of a reply."""
    return lambda reply: changed(reply, v=change(vector_of(reply)).tobytes())


@pytest.fixture
def deploy(
    node_state: NodeState,
    server_folder: Callable[[list[int]], Path],
    data_folders: list[Path],
    settings: list[str],
) -> Callable[..., RunFolder]:
    """Return a runner of a deployment with nodes 1000, 1001, ..., registered in this order."""

    def run(
        spoils: Mapping[int, Spoil],
        kind: str,
        overrides: tuple[str, ...] = (),
        nodes: int = 2,
        **more: Any,
    ) -> RunFolder:
        server = server_folder([1000 + place for place in range(nodes)])
        states = [node_state(f"node{k}", data_folders[k % 2]) for k in range(nodes)]
        experiment = Experiment.load("", [*settings, *overrides])
        run_config = {"experiment": experiment.to_toml(), "out": "trial", **more}
        configs = [{"state": str(state)} for state in states]
        run_local(server_app, Hostile(spoils, kind), configs, run_config)
        return RunFolder(server / "runs" / run_config["out"])

    return run


def numbers(folder: RunFolder) -> dict[int, int]:
    """Return the client of each node."""
    roster = json.loads((folder.path / "roster.json").read_text())["nodes"]
    return {entry["node_id"]: entry["client"] for entry in roster}


def test_a_deployed_server_refuses_an_update_that_would_end_the_run(
    deploy: Callable[..., RunFolder],
) -> None:
    huge = on_vector(lambda vector: np.full_like(vector, 3.4e38))
    lines = deploy({1001: huge}, "train").rounds()
    assert [line["clients"] for line in lines] == [1, 1, 1]
    assert [failed["client"] for failed in lines[0]["failed"]] == [1]
    assert "update norm " in lines[0]["failed"][0]["reason"]
    assert " is above the limit = 98994.9" in lines[0]["failed"][0]["reason"]


def test_a_limit_in_the_settings_replaces_the_default_one(
    deploy: Callable[..., RunFolder],
) -> None:
    larger = on_vector(lambda vector: vector + np.float32(2e4))
    lines = deploy({1001: larger}, "train", ("federation.max_update_norm=1e6",)).rounds()
    assert [line["clients"] for line in lines] == [2, 2, 2]


def test_a_deployed_run_spoiled_by_an_update_continues_from_the_round_before(
    deploy: Callable[..., RunFolder],
) -> None:
    """Here the operator has allowed updates of any size."""
    limit = ("federation.max_update_norm=1e300", "output.eval_every=3")
    whole = deploy({}, "train", limit, out="whole")
    rounds = iter(range(3))
    huge = on_vector(lambda vector: vector if next(rounds) != 1 else np.full_like(vector, 3.4e38))
    with pytest.raises(RunFailed, match="round 3: 0 of 2 clients succeeded"):
        deploy({1001: huge}, "train", limit)
    again = {"resume": 1}
    with pytest.raises(UserError, match=r"--from-round 0: .* after rounds 1 and 2 only"):
        deploy({}, "train", limit, **again, **{"from-round": 0})
    folder = deploy({}, "train", limit, **again, **{"from-round": 1})
    assert [line["round"] for line in folder.rounds()] == [1, 2, 3]
    vectors = [
        load_file(run_folder.path / "vector.safetensors")["vector"]
        for run_folder in (whole, folder)
    ]
    assert vectors[0].tobytes() == vectors[1].tobytes()


@pytest.mark.parametrize("thief", [1000, 1001, 1002])
def test_a_site_cannot_take_the_number_proposed_to_another(
    deploy: Callable[..., RunFolder], thief: int
) -> None:
    """Whatever the order of the nodes' ids."""
    three = ("federation.clients=3", "federation.min_success=1")
    for stolen in {0, 1, 2} - {thief - 1000}:
        folder = deploy({thief: saying(client=stolen)}, HANDSHAKE, three, nodes=3, out=f"s{stolen}")
        honest = {node: node - 1000 for node in (1000, 1001, 1002) if node != thief}
        assert numbers(folder) == honest
        place = thief - 1000
        assert folder.noted() == [f"refused site{place}: client {stolen} is another node's"]


def test_a_site_cannot_take_the_number_of_one_that_does_not_answer(
    deploy: Callable[..., RunFolder],
) -> None:
    def failing(reply: Message) -> Message:
        raise OSError("not ready yet")

    spoils = {1000: saying(client=1), 1001: failing}
    with pytest.raises(RunFailed, match=r"site0: client 1 is another node's; site1: error 2: OSE"):
        deploy(spoils, HANDSHAKE, ("federation.node_wait=1",))


@pytest.mark.parametrize("examples", [10**15, 10_000_001, 0, -1])
def test_a_site_with_an_impossible_number_of_examples_is_refused_by_name(
    deploy: Callable[..., RunFolder], examples: int
) -> None:
    weighted = ("federation.weighting=examples",)
    folder = deploy({1001: saying(examples=examples)}, HANDSHAKE, weighted)
    assert numbers(folder) == {1000: 0}
    [noted] = folder.noted()
    assert noted.startswith(f"refused site1: client 1 with {examples} examples does not belong")
