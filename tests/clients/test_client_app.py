"""The client app's replies to real messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import (
    Context,
    Message,
    RecordDict,
)
from messaging import arriving, content_of, handshake_request, request, vector_of

from clients.app import app, train_together
from clients.data import local_data
from clients.partitioning import partition
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.training import When, evaluate, train_cohort
from fedpeft.wire.messages import TrainReply
from server.flower import new_run
from server.handshake import Report, read_report

Quick = Callable[..., Experiment]
THREE = ("federation.clients=3", "task.train_limit=20")  # 7, 7 and 6 examples


@pytest.fixture
def contexts(tmp_path: Path) -> list[Context]:
    """Contexts of three nodes."""
    shared = {
        "num-partitions": 3,
        "privacy-folder": str(tmp_path / "privacy"),
        "kept-folder": str(tmp_path / "kept"),
    }
    new_run()
    return [
        Context(1, 1000 + client, {"partition-id": client, **shared}, RecordDict(), {})
        for client in range(3)
    ]


def send(kind: str, fields: object, context: Context) -> Message:
    """Pass a message to the app as it arrives at a node."""
    return app(arriving(kind, fields, context.node_id), context)


def shake_hands(experiment: Experiment, context: Context) -> Message:
    return send("query.handshake", handshake_request(experiment), context)


def initial(experiment: Experiment) -> np.ndarray:
    return runtime_of(experiment).parameters.initial(experiment.seed)


def test_the_handshake_returns_client_examples_and_identity(
    quick: Quick, contexts: list[Context]
) -> None:
    experiment = quick(*THREE)
    report = read_report(shake_hands(experiment, contexts[1]))
    identity = runtime_of(experiment).identity
    assert report == Report(client=1, examples=7, identity=identity, unknown=False)
    assert identity["experiment"] == experiment.digest
    assert {"version", "experiment", "backbone", "projection", "layout"} <= set(identity)


def test_a_node_that_lost_the_experiment_asks_for_it(quick: Quick, contexts: list[Context]) -> None:
    experiment, context = quick(), contexts[1]
    brief = replace(handshake_request(experiment), experiment=b"")
    assert read_report(send("query.handshake", brief, context)).unknown
    whole = read_report(shake_hands(experiment, context))
    assert read_report(send("query.handshake", brief, context)) == whole


def test_training_is_train_cohort_on_this_clients_examples(
    quick: Quick, contexts: list[Context]
) -> None:
    experiment, client = quick("local.lr=0.1", *THREE), 2
    shake_hands(experiment, contexts[client])
    start = initial(experiment)
    reply = send("train", request(experiment, start, round_number=2), contexts[client])
    runtime = runtime_of(experiment)
    examples = runtime.train.select(partition(runtime.task, experiment)[client])
    expected = train_cohort(
        runtime.model, start[None], [examples], [client], experiment.local, When(0, 2, 2)
    )
    vector = vector_of(reply)
    assert vector.tobytes() == expected.vectors[0].tobytes()
    assert not np.array_equal(vector, start)
    assert content_of(reply, TrainReply).loss == float(expected.losses[0])


def test_a_client_has_its_own_examples_and_randomness(
    quick: Quick, contexts: list[Context]
) -> None:
    experiment = quick()
    vectors = set()
    for context in contexts:
        shake_hands(experiment, context)
        for number in (1, 2):
            reply = send("train", request(experiment, initial(experiment), number), context)
            vectors.add(vector_of(reply).tobytes())
    assert len(vectors) == 6


def test_evaluation_returns_statistics_of_its_share(quick: Quick, contexts: list[Context]) -> None:
    experiment = quick("federation.evaluation=clients")
    runtime, start = runtime_of(experiment), initial(experiment)
    total = np.zeros(5)
    for context in contexts:
        shake_hands(experiment, context)
        total += vector_of(send("evaluate", request(experiment, start), context), "float64")
    assert total[:2].sum() == len(runtime.dev) == 40
    assert np.array_equal(total, evaluate(runtime.model, start, runtime.dev).statistics)


def test_shares_of_the_dev_set_are_disjoint_and_complete(
    quick: Quick, contexts: list[Context]
) -> None:
    shares = [local_data(quick().to_toml(), context).rows.dev for context in contexts]
    assert sorted(np.concatenate(shares)) == list(range(40))
    assert [len(share) for share in shares] == [14, 13, 13]


def test_train_rows_are_those_of_the_partition(quick: Quick, contexts: list[Context]) -> None:
    experiment = quick(*THREE)
    local = [local_data(experiment.to_toml(), context) for context in contexts]
    expected = partition(runtime_of(experiment).task, experiment)
    assert [data.rows.train.tolist() for data in local] == expected.lists()
    assert [data.client for data in local] == [0, 1, 2]


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_message_without_a_handshake_is_refused(
    quick: Quick, contexts: list[Context], kind: str
) -> None:
    experiment = quick()
    reply = send(kind, request(experiment, initial(experiment)), contexts[0])
    assert reply.error.reason == "ClientError: no handshake about this run came before the message"


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_message_of_another_experiment_is_refused(
    quick: Quick, contexts: list[Context], kind: str
) -> None:
    shake_hands(quick(), contexts[0])
    other = quick("seed=1")
    reply = send(kind, request(other, initial(other)), contexts[0])
    assert "no handshake about this run" in reply.error.reason


def test_a_new_handshake_replaces_the_experiment(quick: Quick, contexts: list[Context]) -> None:
    for experiment in (quick(), quick("seed=1")):
        shake_hands(experiment, contexts[0])
        reply = send("train", request(experiment, initial(experiment)), contexts[0])
        assert reply.has_content()


def test_a_task_vector_that_is_not_finite_is_refused(quick: Quick, contexts: list[Context]) -> None:
    experiment = quick()
    shake_hands(experiment, contexts[0])
    bad = np.full_like(initial(experiment), np.nan)
    assert send("train", request(experiment, bad), contexts[0]).has_error()


def test_a_cohort_trains_clients_without_errors(quick: Quick, contexts: list[Context]) -> None:
    """One has no handshake, one gets a short vector; the third is trained as it is alone."""
    experiment = quick()
    start = initial(experiment)
    for context in contexts[1:]:
        shake_hands(experiment, context)
    content = [request(experiment, vector) for vector in (start, start, start[:-1])]
    messages = [
        arriving("train", vector, context.node_id)
        for vector, context in zip(content, contexts, strict=True)
    ]
    replies = train_together(messages, contexts)
    assert [reply.has_error() for reply in replies] == [True, False, True]
    assert replies[0].error.reason.startswith("ClientError: no handshake")
    assert replies[2].error.reason.startswith("ValueError at formats.py:")
    ids = [reply.metadata.reply_to_message_id for reply in replies]
    assert ids == [message.metadata.message_id for message in messages]
    alone = send("train", request(experiment, start), contexts[1])
    vectors = [vector_of(reply) for reply in (replies[1], alone)]
    assert vectors[0].tobytes() == vectors[1].tobytes()


def test_an_empty_cohort_returns_no_replies(contexts: list[Context]) -> None:
    assert train_together([], []) == []
