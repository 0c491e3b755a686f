"""A train request at a deployed node is charged once and answered once, whatever is repeated."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from messaging import content_of
from workers import handshake, node_context, state_folder, task_vector

from clients import app as client
from clients.folder import NodeFolder
from fedpeft import training
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runtime import runtime_of
from fedpeft.wire.failures import CODES, FailureKind
from fedpeft.wire.messages import TrainReply

Quick = Callable[..., Experiment]
PRIVATE = ["privacy.unit=example", "privacy.noise_multiplier=1", "local.batch_size=4"]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return state_folder(tmp_path / "state")


@pytest.fixture
def experiment(quick: Quick) -> Experiment:
    """Its noise cannot be drawn again, so two trainings never end in the same vector."""
    return quick(*PRIVATE)


@pytest.fixture
def start(experiment: Experiment) -> np.ndarray:
    return runtime_of(experiment).parameters.initial(0)


@pytest.fixture
def context(state: Path, experiment: Experiment) -> Context:
    context = node_context(state)
    assert client.app(handshake(experiment), context).has_content()
    return context


def charges(state: Path) -> int:
    ledger = NodeFolder(state).ledger
    return len(read_ledger(ledger).charges) if ledger.exists() else 0


def trained(message: Message, context: Context) -> TrainReply:
    reply = client.app(message, context)
    assert reply.has_content(), reply.error
    assert reply.metadata.reply_to_message_id == message.metadata.message_id
    return content_of(reply, TrainReply)


def test_a_repeated_request_gets_the_stored_reply_and_no_charge(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context
) -> None:
    replies = [trained(task_vector("train", experiment, start), context) for _ in range(3)]
    assert replies[0] == replies[1] == replies[2]
    assert charges(state) == 1


def test_sums_for_the_start_are_sent_again_from_the_stored_reply(state: Path, quick: Quick) -> None:
    """The owner has forbidden them since: what has left may be repeated, and nothing else."""
    experiment = quick("head.start=sums")
    context = node_context(state)
    assert client.app(handshake(experiment), context).has_content()
    vector = runtime_of(experiment).parameters.initial(0)
    request = task_vector("train", experiment, vector, 0)
    first = trained(request, context)
    state_folder(state, sums=False)
    assert trained(request, context) == first
    other = client.app(task_vector("train", experiment, vector + 1, 0), context)
    assert other.has_error() and "--no-sums" in other.error.reason


def test_another_round_or_vector_is_another_training(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context
) -> None:
    requests = [
        task_vector("train", experiment, start, 1),
        task_vector("train", experiment, start, 2),
        task_vector("train", experiment, start + 1, 2),
        task_vector("train", experiment, start, 1),  # replayed after its reply was replaced
    ]
    replies = [trained(request, context) for request in requests]
    assert len({reply.vector for reply in replies}) == 4
    assert charges(state) == 4


def kill_in_training(message: Message, context: Context) -> None:
    """Train in a forked process that kills itself after the charge."""
    child = os.fork()
    if not child:  # pragma: no cover - never returns to pytest
        training.train_cohort = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        try:
            client.app(message, context)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def test_a_training_that_was_killed_after_its_charge_is_not_charged_again(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context
) -> None:
    request = task_vector("train", experiment, start)
    for _ in range(2):
        kill_in_training(request, context)
    assert charges(state) == 1
    reply = trained(request, context)
    assert charges(state) == 1
    assert trained(request, context) == reply


@pytest.mark.parametrize("killed", [False, True])
def test_a_refusal_says_whether_an_earlier_try_may_have_charged(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context, killed: bool
) -> None:
    request = task_vector("train", experiment, start)
    if killed:
        kill_in_training(request, context)
    state_folder(state, max_vector=1)
    kind = FailureKind.FAILED if killed else FailureKind.UNCHARGED
    for _ in range(2):  # the first refusal does not make the second one doubtful
        reply = client.app(request, context)
        assert reply.error.reason.startswith("Refusal: ") and charges(state) == killed
        assert reply.error.code == CODES[kind]


def test_a_killed_training_does_not_pay_for_another_request(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context
) -> None:
    kill_in_training(task_vector("train", experiment, start), context)
    trained(task_vector("train", experiment, start + 1), context)
    trained(task_vector("train", experiment, start), context)
    assert charges(state) == 3


def test_a_training_that_failed_is_trained_again_without_a_second_charge(
    state: Path,
    experiment: Experiment,
    start: np.ndarray,
    context: Context,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    request = task_vector("train", experiment, start)
    with monkeypatch.context() as patch:
        patch.setattr(training, "train_cohort", fail)
        assert client.app(request, context).has_error()
    trained(request, context)
    assert charges(state) == 1


@pytest.mark.slow
def test_two_processes_with_the_same_request_train_once(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context
) -> None:
    request = task_vector("train", experiment, start)
    forked = get_context("fork")
    queue = forked.SimpleQueue()
    processes = [
        forked.Process(target=lambda: queue.put(trained(request, context).vector)) for _ in "ab"
    ]
    for process in processes:
        process.start()
    vectors = {queue.get() for _ in processes}
    for process in processes:
        process.join()
    assert len(vectors) == 1
    assert charges(state) == 1


def test_a_damaged_file_counts_as_none(
    state: Path, experiment: Experiment, start: np.ndarray, context: Context
) -> None:
    request = task_vector("train", experiment, start)
    trained(request, context)
    [file] = NodeFolder(state).attempts.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(file.read_bytes()[:-1])
    trained(request, context)
    assert charges(state) == 2


def test_replies_of_the_newest_runs_are_kept(
    state: Path, quick: Quick, start: np.ndarray, context: Context
) -> None:
    for seed in range(6):
        experiment = quick("local.steps=1", f"seed={seed}")
        assert client.app(handshake(experiment), context).has_content()
        trained(task_vector("train", experiment, start), context)
    assert len([*NodeFolder(state).attempts.iterdir()]) == 4


def test_a_request_without_a_handshake_stores_no_reply(
    state: Path, experiment: Experiment, start: np.ndarray
) -> None:
    reply = client.app(task_vector("train", experiment, start), node_context(state))
    assert "no handshake about this run" in reply.error.reason
    assert charges(state) == 0
