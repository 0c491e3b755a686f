"""The relay's replies with a real worker, and without one."""

from __future__ import annotations

import copy
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message
from messaging import arriving
from workers import (
    eventually,
    handshake,
    logged,
    node_context,
    running_worker,
    same_time,
    state_folder,
    task_vector,
)

from clients import app
from clients.flower import context_to_wire, from_wire, to_wire
from clients.folder import NodeFolder
from deployment.node import relay
from deployment.node.worker import answer, answer_wire
from fedpeft.experiment.config import Experiment
from fedpeft.runtime import runtime_of
from fedpeft.wire.messages import HandshakeRequest, Request
from server.exchange.sending import _TYPES

Quick = Callable[..., Experiment]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node with a worker."""
    folder = state_folder(tmp_path_factory.mktemp("node") / "state")
    with running_worker(folder):
        yield folder


@pytest.fixture
def experiment(quick: Quick) -> Experiment:
    return quick("federation.evaluation=clients")


@pytest.fixture
def start(experiment: Experiment) -> np.ndarray:
    return runtime_of(experiment).parameters.initial(0)


def both(asked: Message, context: Context) -> tuple[bytes, bytes]:
    """Return the replies of the relay and of this process's client app to a message."""
    here = copy.deepcopy(context)
    replies = relay.app(asked, context), app.app(asked, here)
    assert context_to_wire(context) == context_to_wire(here)
    return same_time(replies[0]), same_time(replies[1])


@pytest.mark.slow
def test_the_worker_gives_the_same_bytes_as_this_process(
    state: Path, experiment: Experiment, start: np.ndarray
) -> None:
    context = node_context(state)
    messages = [
        handshake(experiment),
        task_vector("train", experiment, start),
        task_vector("evaluate", experiment, start),
    ]
    for asked in messages:
        replies = both(asked, context)
        assert replies[0] == replies[1]
        assert from_wire(replies[0]).has_content()
    done = [line for line in logged(state) if "done in" in line]
    assert [line.partition(":")[0] for line in done] == [
        "query.handshake",
        "train, round 1",
        "evaluate, round 1",
    ]


@pytest.mark.slow
def test_the_worker_gives_the_same_error_replies_as_this_process(
    state: Path, experiment: Experiment, start: np.ndarray, quick: Quick
) -> None:
    other, context = quick("seed=77"), node_context(state)
    asked = (
        task_vector("train", other, start),
        task_vector("evaluate", experiment, start[:-1]),
        handshake("seed = ["),
    )
    for message in asked:
        replies = both(message, context)
        assert replies[0] == replies[1]
        assert from_wire(replies[0]).error.reason


@pytest.mark.parametrize("kind", sorted(_TYPES.values()))
def test_each_kind_of_message_that_servers_send_is_answered(kind: str, tmp_path: Path) -> None:
    """Flower refuses the kinds that the relay does not know, before any code of ours."""
    state = state_folder(tmp_path / "state")
    reply = relay.app(arriving(kind, Request(label=bytes(8))), node_context(state))
    expected = "messages.py" if kind == "query.handshake" else "no handshake about this run"
    assert expected in reply.error.reason


@pytest.mark.slow
def test_changes_of_the_context_by_the_worker_arrive(state: Path, tmp_path: Path) -> None:
    context = node_context(state)
    context.state["kept"] = ConfigRecord({"round": 3})
    asked = handshake("seed = [")
    relay.app(asked, context)
    assert dict(context.state["kept"]) == {"round": 3}
    reply, changed = answer_wire(NodeFolder(state), (to_wire(asked), context_to_wire(context)))
    assert from_wire(reply).has_error() and changed == context_to_wire(context)


def test_without_a_worker_the_relay_answers(
    tmp_path: Path, experiment: Experiment, start: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    context = node_context(state_folder(tmp_path / "state"))
    assert relay.app(handshake(experiment), context).has_content()
    replies = both(task_vector("train", experiment, start), context)
    assert replies[0] == replies[1]
    assert "this process answers instead" in caplog.text


@pytest.mark.slow
def test_the_relay_answers_if_the_worker_is_killed_during_a_message(
    tmp_path: Path, experiment: Experiment, start: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    state = state_folder(tmp_path / "state")
    context, replies = node_context(state), []
    with running_worker(state) as worker:
        assert relay.app(handshake(experiment), context).has_content()
        asked = task_vector("train", experiment, start)
        expected = same_time(relay.app(asked, context))
        worker.send_signal(signal.SIGSTOP)  # it has the message, and will never answer it
        asking = threading.Thread(
            target=lambda: replies.append(relay.app(asked, context)), daemon=True
        )
        asking.start()
        asking.join(timeout=0.3)
        assert not replies
        worker.send_signal(signal.SIGKILL)
        eventually(lambda: bool(replies))
    assert same_time(replies[0]) == expected
    assert "no answer from the worker" in caplog.text


def test_an_exception_in_the_relay_becomes_an_error_reply_without_its_text(
    tmp_path: Path, quick: Quick, caplog: pytest.LogCaptureFixture
) -> None:
    """The text of the exception quotes the data, as this node's log shows."""
    secret = "of a patient's name"
    (tmp_path / "own.csv").write_text(f"text,label\ngood,fine\nbad,{secret}\n")
    state = state_folder(
        tmp_path / "state", data=str(tmp_path / "own.csv"), partition=None, labels=("fine", "no")
    )
    custom = ["task.name=custom", "task.train_limit=0", "task.eval_limit=0", "task.labels=fine,no"]
    reply = relay.app(handshake(quick(*custom)), node_context(state))
    assert reply.error.reason.startswith("UserError at readers.py:")
    assert secret.encode() not in to_wire(reply)
    assert f"label = '{secret}' is none of the labels" in caplog.text
    unknown = answer(arriving("train.unknown", HandshakeRequest()), node_context(state))
    assert unknown.has_error() and "unknown" not in unknown.error.reason


def test_the_relay_imports_no_heavy_library() -> None:
    program = (
        "import sys, deployment.node.relay, deployment.node.process\n"
        "print(sorted({'torch', 'transformers', 'pandas',"
        " 'scipy', 'datasets', 'clients.app', 'fedpeft.runtime'} & set(sys.modules)))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stdout.strip() == "[]"
