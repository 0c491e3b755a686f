"""Sums under masks with the state folders of a deployment, in one process.

Four of five nodes have to stay: see ``fedpeft.secure.thresholds``.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from inprocess import deploy, read, rounds, simulated

from clients import app as clients_app
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.hosting.keys import make_node
from fedpeft.privacy.ledger import read_ledger
from fedpeft.wire.messages import RECORD

NodeState = Callable[..., Path]
NodeStates = Callable[..., list[Path]]
NODES = 5
SECURE = [
    "backbone=tiny",
    "method.d=32",
    "task.train_limit=100",
    "task.eval_limit=20",
    "engine.cohort=1",
    "engine.threads=1",
    "output.plots=false",
    "federation.secure=true",
    f"federation.clients={NODES}",
    "federation.min_success=4",
    "federation.rounds=2",
    "wire.up=uniform4",
]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=1", "privacy.reproducible=true"]


@pytest.fixture
def server(server_folder: Callable[[list[int]], Path]) -> Path:
    """A server's state folder that knows the nodes."""
    return server_folder([1000 + k for k in range(NODES)])


@pytest.fixture
def node_states(tmp_path: Path, node_state: NodeState) -> NodeStates:
    """Return a maker of the nodes' state folders; ``missing[k]`` are not in the roster of k."""
    keys = tmp_path / "keys"

    def make(missing: dict[int, Sequence[int]] | None = None) -> list[Path]:
        public = [make_node(keys, f"site{k}")[1].read_text() for k in range(NODES)]
        states = []
        for k in range(NODES):
            roster = keys / f"roster{k}"
            left_out = (missing or {}).get(k, ())
            roster.write_text("".join(line for j, line in enumerate(public) if j not in left_out))
            own = {"key": str(keys / f"site{k}"), "roster": str(roster)}
            states.append(node_state(f"node{k}", partition=k, **own))
        return states

    return make


def vector_digest(server: Path) -> str:
    return str(read(server / "runs" / "trial" / "result.json")["digests"]["vector"])


@pytest.mark.parametrize(
    "settings",
    [[], ["wire.up=uniform1", "wire.down=delta4", "federation.weighting=examples"], PRIVATE],
    ids=["usual", "codecs", "private"],
)
def test_the_vector_has_the_bits_of_the_simulation(
    settings: list[str],
    tmp_path: Path,
    node_states: NodeStates,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    experiment = Experiment.load("", [*SECURE, *settings])
    states = node_states()
    deploy(experiment, states)
    assert [(line["clients"], line["failed"]) for line in rounds(server)] == [(NODES, [])] * 2
    expected = simulated(experiment, tmp_path, monkeypatch)
    assert vector_digest(server) == expected["digests"]["vector"]
    if settings == PRIVATE:
        ledgers = [read_ledger(state / "privacy.sqlite").charges for state in states]
        assert [len(charges) for charges in ledgers] == [2] * NODES


class Killed(ClientApp):
    """The real client app, but the process dies before the ``nth`` message of a kind in a round."""

    def __init__(self, kind: str, nth: int, number: int):
        super().__init__()
        self.kind, self.left, self.number = kind, nth, number

    def __call__(self, message: Message, context: Context) -> Message:
        if (
            message.metadata.message_type == self.kind
            and message.content[RECORD]["r"] == self.number
        ):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return clients_app.app(message, context)


@pytest.mark.parametrize("settings", [[], PRIVATE], ids=["plain", "private"])
@pytest.mark.parametrize(
    ("kind", "nth"),
    [
        ("query.prepare", 3),
        ("train", 1),
        ("train", 4),
        ("query.unmask", 1),
        ("query.unmask", 3),
    ],
)
def test_a_killed_server_resumes_to_the_same_bits_and_nobody_trains_twice(
    kind: str,
    nth: int,
    settings: list[str],
    tmp_path: Path,
    node_states: NodeStates,
    server: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node answers a repeated request with the masked update that it has stored."""
    trained: Counter[str] = Counter()
    train_together = clients_app.train_together

    def counted(messages: list[Message], contexts: list[Context], attempt: object) -> object:
        replies = train_together(messages, contexts, attempt)  # type: ignore[arg-type]
        trained[str(contexts[0].node_config["state"])] += 1
        return replies

    monkeypatch.setattr(clients_app, "train_together", counted)
    experiment, states = Experiment.load("", [*SECURE, *settings]), node_states()
    with pytest.raises(KeyboardInterrupt):
        deploy(experiment, states, app=Killed(kind, nth, 2))
    assert len(rounds(server)) == 1
    deploy(experiment, states, resume=True)
    assert [(line["clients"], line["failed"]) for line in rounds(server)] == [(NODES, [])] * 2
    assert trained == {str(state): 2 for state in states}
    if settings:
        for state in states:
            assert len(read_ledger(state / "privacy.sqlite").charges) == 2
    monkeypatch.undo()
    monkeypatch.setenv("FEDPEFT_SERVER_STATE", str(server))
    expected = simulated(experiment, tmp_path, monkeypatch)
    assert vector_digest(server) == expected["digests"]["vector"]
