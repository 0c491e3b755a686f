"""What a node answers, by real messages to the real app."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    RecordDict,
)

from clients.app import app, train_together
from clients.data import local_data
from fedpeft.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.training import When, evaluate, train_cohort
from server.flower import from_wire, give_id, new_run, to_wire

Quick = Callable[..., Experiment]
SHARES = [[0, 3, 4, 9, 11, 30], [1, 2], [5, 6, 7, 8, 10, 12, 13, 14, 15, 16, 17]]


@pytest.fixture
def contexts(tmp_path: Path) -> list[Context]:
    """Three nodes with few examples each."""
    path = tmp_path / "partition.json"
    path.write_text(json.dumps({"clients": SHARES}))
    shared = {
        "num-partitions": 3,
        "partition-file": str(path),
        "privacy-folder": str(tmp_path / "privacy"),
        "personal-folder": str(tmp_path / "personal"),
    }
    new_run()
    return [
        Context(1, 1000 + client, {"partition-id": client, **shared}, RecordDict(), {})
        for client in range(3)
    ]


def send(kind: str, content: RecordDict, context: Context) -> Message:
    """Pass a message to the app as it would arrive."""
    return app(arriving(kind, content, context), context)


def arriving(kind: str, content: RecordDict, context: Context) -> Message:
    message = Message(content, dst_node_id=context.node_id, message_type=kind)
    give_id(message)
    return from_wire(to_wire(message))


def shake_hands(experiment: Experiment, context: Context) -> Message:
    content = RecordDict(
        {"config": ConfigRecord({"experiment": experiment.to_toml(), "client": -1})}
    )
    return send("query.handshake", content, context)


def task_vector(experiment: Experiment, vector: np.ndarray, round: int = 1) -> RecordDict:
    return RecordDict(
        {
            "arrays": ArrayRecord({"vector": Array(vector)}),
            "config": ConfigRecord({"experiment": experiment.digest, "round": round}),
        }
    )


def initial(experiment: Experiment) -> np.ndarray:
    return runtime_of(experiment.to_toml()).model.initial(experiment.seed)


def test_the_handshake_says_who_is_here_and_what_would_be_used(
    quick: Quick, contexts: list[Context]
) -> None:
    experiment = quick()
    said = dict(shake_hands(experiment, contexts[1]).content["node"])
    identity = runtime_of(experiment.to_toml()).identity
    assert said == {"client": 1, "examples": 2, **identity}
    assert said["experiment"] == experiment.digest
    assert {"version", "experiment", "backbone", "projection", "layout"} <= set(identity)


def test_training_is_train_cohort_on_this_clients_examples(
    quick: Quick, contexts: list[Context]
) -> None:
    experiment, client = quick("local.lr=0.1"), 2
    shake_hands(experiment, contexts[client])
    start = initial(experiment)
    reply = send("train", task_vector(experiment, start, round=2), contexts[client])
    runtime = runtime_of(experiment.to_toml())
    examples = runtime.train.select(np.array(SHARES[client]))
    expected = train_cohort(
        runtime.model, start[None], [examples], [client], experiment.local, When(0, 2, 2)
    )
    vector = reply.content["arrays"]["vector"].numpy()
    assert vector.tobytes() == expected.vectors[0].tobytes()
    assert not np.array_equal(vector, start)
    assert reply.content["metrics"]["loss"] == float(expected.losses[0])
    assert reply.content["config"]["experiment"] == experiment.digest


def test_a_client_has_its_own_examples_and_randomness(
    quick: Quick, contexts: list[Context]
) -> None:
    experiment = quick()
    vectors = set()
    for context in contexts:
        shake_hands(experiment, context)
        for round in (1, 2):
            reply = send("train", task_vector(experiment, initial(experiment), round), context)
            vectors.add(reply.content["arrays"]["vector"].numpy().tobytes())
    assert len(vectors) == 6


def test_evaluation_returns_statistics_of_its_share(quick: Quick, contexts: list[Context]) -> None:
    experiment = quick()
    runtime, start = runtime_of(experiment.to_toml()), initial(experiment)
    total = np.zeros(4)
    for context in contexts:
        shake_hands(experiment, context)
        content = send("evaluate", task_vector(experiment, start), context).content
        total += content["arrays"]["statistics"].numpy()
    assert total.sum() == len(runtime.dev) == 40
    assert np.array_equal(total, evaluate(runtime.model, start, runtime.dev).statistics)


def test_shares_of_the_dev_set_are_disjoint_and_complete(
    quick: Quick, contexts: list[Context]
) -> None:
    shares = [local_data(quick().to_toml(), context).dev for context in contexts]
    assert sorted(np.concatenate(shares)) == list(range(40))
    assert [len(share) for share in shares] == [14, 13, 13]


def test_train_rows_are_those_of_the_partition_file(quick: Quick, contexts: list[Context]) -> None:
    own = [local_data(quick().to_toml(), context) for context in contexts]
    assert [data.train.tolist() for data in own] == SHARES
    assert [data.client for data in own] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_without_a_handshake_nothing_is_done(
    quick: Quick, contexts: list[Context], kind: str
) -> None:
    experiment = quick()
    reply = send(kind, task_vector(experiment, initial(experiment)), contexts[0])
    assert reply.error.reason == "ClientError: no handshake came before this message"


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_message_of_another_experiment_is_refused(
    quick: Quick, contexts: list[Context], kind: str
) -> None:
    shake_hands(quick(), contexts[0])
    other = quick("seed=1")
    reply = send(kind, task_vector(other, initial(other)), contexts[0])
    assert "belongs to another experiment than the handshake" in reply.error.reason


def test_a_new_handshake_replaces_the_experiment(quick: Quick, contexts: list[Context]) -> None:
    for experiment in (quick(), quick("seed=1")):
        shake_hands(experiment, contexts[0])
        reply = send("train", task_vector(experiment, initial(experiment)), contexts[0])
        assert reply.has_content()


def test_a_task_vector_that_is_not_finite_is_refused(quick: Quick, contexts: list[Context]) -> None:
    experiment = quick()
    shake_hands(experiment, contexts[0])
    bad = np.full_like(initial(experiment), np.nan)
    assert send("train", task_vector(experiment, bad), contexts[0]).has_error()


def test_a_cohort_trains_those_who_can(quick: Quick, contexts: list[Context]) -> None:
    """One has no handshake, one gets too short a vector; the third gets its own result."""
    experiment = quick()
    start = initial(experiment)
    for context in contexts[1:]:
        shake_hands(experiment, context)
    content = [task_vector(experiment, vector) for vector in (start, start, start[:-1])]
    messages = [
        arriving("train", each, context) for each, context in zip(content, contexts, strict=True)
    ]
    replies = train_together(messages, contexts)
    assert [reply.has_error() for reply in replies] == [True, False, True]
    assert replies[0].error.reason.startswith("ClientError: no handshake")
    assert replies[2].error.reason.startswith("ValueError at vector.py:")
    ids = [reply.metadata.reply_to_message_id for reply in replies]
    assert ids == [message.metadata.message_id for message in messages]
    alone = send("train", task_vector(experiment, start), contexts[1])
    vectors = [reply.content["arrays"]["vector"].numpy() for reply in (replies[1], alone)]
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_a_cohort_of_nobody_is_nobody(contexts: list[Context]) -> None:
    assert train_together([], []) == []
