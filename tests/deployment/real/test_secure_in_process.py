"""Sums under masks with the state folders of a deployment, in one process.

Four of five nodes have to stay: see ``fedpeft.secure.thresholds``.
"""

from __future__ import annotations

import base64
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from inprocess import deploy, read, rounds, simulated
from messaging import changed

from clients import app as clients_app
from clients.memory import attempts
from deployment.hosting.keys import make_node
from fedpeft.errors import RunFailed
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import read_ledger
from fedpeft.wire.messages import RECORD
from server.flower import from_wire, to_wire

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
OWN_NOISE = ["privacy.unit=client", "privacy.client_noise=secure", "privacy.noise_multiplier=1"]
NOISED = [*OWN_NOISE, "privacy.reproducible=true"]


@pytest.fixture
def server(server_folder: Callable[[list[int]], Path]) -> Path:
    """A server's state folder that knows the nodes."""
    return server_folder([1000 + k for k in range(NODES)])


@pytest.fixture
def node_states(tmp_path: Path, node_state: NodeState) -> NodeStates:
    """Return a maker of the nodes' state folders, with keys and rosters in ``tmp_path/keys``.

    ``without`` has no roster, and the roster of k lacks ``missing[k]``.
    """
    keys = tmp_path / "keys"

    def make(missing: Mapping[int, int] = {}, without: int | None = None) -> list[Path]:
        public = [make_node(keys, f"site{k}")[1].read_text() for k in range(NODES)]
        states = []
        for k in range(NODES):
            known = [line for j, line in enumerate(public) if j != missing.get(k)]
            (keys / f"roster{k}").write_text("".join(known))
            roster = "" if k == without else str(keys / f"roster{k}")
            own = {"key": str(keys / f"site{k}"), "roster": roster}
            states.append(node_state(f"node{k}", partition=k, **own))
        return states

    return make


def vector_digest(server: Path) -> str:
    return str(read(server / "runs" / "trial" / "result.json")["digests"]["vector"])


@pytest.mark.parametrize(
    "settings",
    [[], ["wire.up=uniform1", "wire.down=eden8", "federation.weighting=examples"], PRIVATE, NOISED],
    ids=["usual", "codecs", "private", "noised"],
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
    if settings in (PRIVATE, NOISED):
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


@pytest.mark.parametrize(
    ("kind", "nth", "settings"),
    [
        ("query.prepare", 3, []),
        ("train", 1, PRIVATE),
        ("train", 4, []),
        ("train", 4, PRIVATE),
        ("train", 4, NOISED),
        ("query.unmask", 1, NOISED),
        ("query.unmask", 3, []),
        ("query.unmask", 3, PRIVATE),
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


def test_a_node_killed_after_masking_adds_the_same_noise_again(
    node_states: NodeStates, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reply was not stored, so it trains again; the noise is of the operating system."""
    updates: dict[str, list[bytes]] = {}
    train_together, write = clients_app.train_together, attempts._write

    def kept(messages: list[Message], contexts: list[Context], attempt: object) -> list[Message]:
        replies = train_together(messages, contexts, attempt)  # type: ignore[arg-type]
        if messages[0].content[RECORD]["r"] == 2:
            node = str(contexts[0].node_config["state"])
            updates.setdefault(node, []).append(bytes(replies[0].content[RECORD]["v"]))
        return replies

    def killed(path: Path, stored: attempts._Stored) -> None:
        if "node3" in str(path) and stored.reply and updates.get(str(states[3])):
            raise KeyboardInterrupt
        write(path, stored)

    monkeypatch.setattr(clients_app, "train_together", kept)
    monkeypatch.setattr(attempts, "_write", killed)
    experiment, states = Experiment.load("", [*SECURE, *OWN_NOISE]), node_states()
    with pytest.raises(KeyboardInterrupt):
        deploy(experiment, states)
    monkeypatch.setattr(attempts, "_write", write)
    deploy(experiment, states, resume=True)
    assert [(line["clients"], line["failed"]) for line in rounds(server)] == [(NODES, [])] * 2
    first, second = updates[str(states[3])]
    assert first == second
    assert [len(each) for node, each in updates.items() if node != str(states[3])] == [1] * 4
    assert len(read_ledger(states[3] / "privacy.sqlite").charges) == 2


def took_part(server: Path) -> list[tuple[int, list[int]]]:
    return [
        (line["clients"], [fail["client"] for fail in line["failed"]]) for line in rounds(server)
    ]


def test_a_resumed_round_with_other_clients_has_no_sum_and_the_next_one_has(
    tmp_path: Path, node_states: NodeStates, server: Path
) -> None:
    """Nodes prepare a round for one list of clients, also if the server lost their replies."""
    experiment, states = Experiment.load("", [*SECURE, "federation.rounds=3"]), node_states()
    with pytest.raises(KeyboardInterrupt):
        deploy(experiment, states, app=Killed("query.prepare", 4, 2))
    (tmp_path / "keys" / "roster4").unlink()
    deploy(experiment, states, resume=True)
    _, second, third = rounds(server)
    assert (second["clients"], third["clients"]) == (0, 4)
    reasons = [each["reason"] for each in second["failed"]]
    assert [reason for reason in reasons if "round 2 was prepared, for its list" in reason]
    assert [reason for reason in reasons if "1 of 4 clients prepared the round, the" in reason]


def noted(server: Path) -> list[str]:
    lines = (server / "runs" / "trial" / "refused.jsonl").read_text().splitlines()
    return [json.loads(line)["message"] for line in lines]


def test_a_node_without_a_roster_refuses_and_the_server_records_why(
    node_states: NodeStates, server: Path
) -> None:
    """The other four suffice: all of them have to stay."""
    deploy(Experiment.load("", SECURE), node_states(without=2))
    assert noted(server) == [
        "no handshake: site2: error 2: Refusal: federation.secure = true: this node knows no other "
        "nodes; `fedpeft node up --roster` names the file of their public keys"
    ]
    assert took_part(server) == [(4, [])] * 2


def test_a_node_without_a_roster_takes_part_in_other_runs(
    node_states: NodeStates, server: Path
) -> None:
    plain = [each for each in SECURE if not each.startswith(("federation.secure", "wire.up"))]
    alone = [*plain, "federation.min_success=1"]
    deploy(Experiment.load("", alone), node_states(without=2))
    assert [line["clients"] for line in rounds(server)] == [1, 1]  # the others refuse


def test_a_node_whose_roster_lacks_another_one_prepares_no_round(
    node_states: NodeStates, server: Path
) -> None:
    states = node_states(missing={0: 3})
    deploy(Experiment.load("", SECURE), states)
    assert took_part(server) == [(4, [0])] * 2
    [failure] = rounds(server)[0]["failed"]
    assert failure["reason"] == (
        "error 2: ClientError: 1 of 5 clients of the round are not in this node's roster, or their "
        "keys are not signed for this run"
    )
    assert not (states[0] / "attempts").exists()


def test_too_few_nodes_that_know_all_others_end_the_run_before_training(
    node_states: NodeStates, server: Path
) -> None:
    states = node_states(missing={0: 3, 1: 4})
    expected = (
        r"round 1: 3 of 5 clients prepared a sum under masks, the threshold is 4 "
        r"\(secure.threshold\) \(client 0: error 2: ClientError: 1 of 5 clients of the round are "
        r"not in this node's roster"
    )
    with pytest.raises(RunFailed, match=expected) as failed:
        deploy(Experiment.load("", SECURE), states)
    ended = read(server / "runs" / "trial" / "ended.json")
    assert (ended["ok"], ended["reason"]) == (False, str(failed.value))
    assert not [state for state in states if (state / "attempts").exists()]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("roster1", ("keys", "--roster {}: No such file or directory; expected the .pub files")),
        ("site1", ("secrets", "--key {}: cannot be read")),
    ],
)
def test_a_key_or_roster_that_is_gone_is_one_line_whose_text_stays_at_the_node(
    path: str,
    expected: tuple[str, str],
    tmp_path: Path,
    node_states: NodeStates,
    server: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    states = node_states()
    (tmp_path / "keys" / path).unlink()
    deploy(Experiment.load("", SECURE), states)
    [line] = noted(server)
    module, logged = expected
    assert re.fullmatch(rf"no handshake: site1: error 2: UserError at {module}\.py:\d+", line)
    assert logged.format(tmp_path / "keys" / path) in caplog.text
    assert took_part(server) == [(4, [])] * 2


class Watched(ClientApp):
    """The real client app; keeps all secrets of nodes and all replies, and meets wrong requests."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds: set[bytes] = set()
        self.shares: set[bytes] = set()
        self.said: list[bytes] = []
        self.errors: list[str] = []

    def __call__(self, message: Message, context: Context) -> Message:
        if message.metadata.message_type != "query.handshake":
            for field in ("r", "m", "p", "s", "v"):
                wrong = 99 if field == "r" else b"x" * 100
                self._answer(changed(from_wire(to_wire(message)), **{field: wrong}), context)
        return self._answer(message, context)

    def _answer(self, message: Message, context: Context) -> Message:
        reply = clients_app.app(message, context)
        self._look(Path(str(context.node_config["state"])))
        if reply.has_error():
            self.errors.append(reply.error.reason)
        elif message.metadata.message_type != "query.unmask":  # which reveals shares
            self.said += [v for v in reply.content[RECORD].values() if isinstance(v, bytes)]
        return reply

    def _look(self, state: Path) -> None:
        for path in (state / "kept" / "secure").iterdir():
            assert path.stat().st_mode & 0o777 == 0o600
            assert path.parent.stat().st_mode & 0o777 == 0o700
            run = read(path)
            self.seeds.add(bytes.fromhex(run["private"]))
            if latest := run["latest"]:
                self.seeds |= {bytes.fromhex(latest[key]) for key in ("key_seed", "mask_seed")}
                held = [latest["own_share"], *latest["held"].values()]
                self.shares |= {bytes.fromhex(share) for share in held}


def test_no_secret_is_in_a_log_an_error_or_another_file(
    tmp_path: Path, node_states: NodeStates, server: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Secrets are in their own private files only; replies to unmask messages have shares."""
    states, watched = node_states(), Watched()
    with caplog.at_level(logging.DEBUG):
        deploy(Experiment.load("", [*SECURE, *PRIVATE]), states, app=watched)
    assert took_part(server) == [(NODES, [])] * 2
    # One key of the run, and two seeds of each preparation.
    assert len(watched.errors) > 100 and len(watched.seeds) == NODES * (1 + 2 * 2)
    own = [(tmp_path / "keys" / f"site{k}").read_text().split("\n")[3] for k in range(NODES)]
    texts = [caplog.text, *watched.errors]
    kept = [path for state in states for path in state.rglob("*") if path.parent.name != "secure"]
    files = [path.read_bytes() for path in [*kept, *server.rglob("*")] if path.is_file()]
    for secret in watched.seeds | watched.shares:
        forms = secret.hex(), base64.b64encode(secret).decode(), repr(secret)[2:-1]
        assert not [form for form in forms for text in texts if form in text]
        assert not [file for file in files if secret in file or secret.hex().encode() in file]
    assert not [seed for seed in watched.seeds if any(seed in said for said in watched.said)]
    assert not [line for line in own for text in texts if line in text]
