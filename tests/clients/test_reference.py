"""The reference of a downlink of steps at a node: it survives a process, and hostile messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message
from messaging import arriving, content_of, handshake_request
from workers import node_context, state_folder

from clients.folder import NodeFolder
from clients.memory.experiment import recall
from clients.memory.reference import follow
from deployment.node import relay
from fedpeft.experiment.config import Experiment
from fedpeft.privacy.ledger import read_ledger
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.updates.transfer import decode_step, encode_slopes, encode_step
from fedpeft.wire.messages import (
    INITIAL_REFERENCE,
    HandshakeReply,
    HandshakeRequest,
    Request,
    label,
    next_reference,
)

Quick = Callable[..., Experiment]
SETTINGS = ("wire.down=delta1", "local.steps=1", "federation.rounds=9")
STEP, WHOLE = 4 + 11, 4 * 82
SLOPES = (
    *("local.perturbations=2", "local.steps=1", "wire.up=scalars", "wire.down=scalars"),
    *("local.optimizer=sgd", "local.max_grad_norm=0", "federation.rounds=9"),
)


@pytest.fixture
def experiment(quick: Quick) -> Experiment:
    return quick(*SETTINGS)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return node_context(state_folder(tmp_path / "state"))


def named(experiment: Experiment, context: Context) -> bytes:
    """Shake hands, and return the name of the reference that the node holds."""
    request: HandshakeRequest = handshake_request(experiment, 0)
    reply = relay.app(arriving("query.handshake", request), context)
    return content_of(reply, HandshakeReply).reference


def train(
    experiment: Experiment, context: Context, number: int, payload: bytes, name: bytes
) -> Message:
    request = Request(
        vector=payload, round=number, label=label(experiment.digest, ""), reference=name
    )
    return relay.app(arriving("train", request), context)


def after(*steps: bytes, start: bytes = INITIAL_REFERENCE) -> bytes:
    """Return the name of the reference after steps."""
    for step in steps:
        start = next_reference(start, step)
    return start


def steps(runtime: Runtime, count: int) -> list[bytes]:
    """Return the steps of some rounds; they do not lead anywhere in particular."""
    start = runtime.parameters.initial_shared(0)
    return [encode_step(runtime, n, start + np.float32(n), start) for n in range(1, count + 1)]


def test_a_node_names_the_reference_it_holds(experiment: Experiment, context: Context) -> None:
    one, two, three = steps(runtime_of(experiment), 3)
    assert named(experiment, context) == INITIAL_REFERENCE
    assert train(experiment, context, 1, one, after(one)).has_content()
    assert named(experiment, context) == after(one)
    last = after(one, two, three)
    assert train(experiment, context, 3, two + three, last).has_content()
    assert named(experiment, context) == last
    assert train(experiment, context, 3, b"", last).has_content()  # a repeated round
    assert train(experiment, context, 3, one + two + three, last).has_content()
    assert named(experiment, context) == last


def test_a_repeated_round_is_charged_once(quick: Quick, context: Context, tmp_path: Path) -> None:
    """The second message has no steps, as the client holds the vector by then."""
    experiment = quick(*SETTINGS, "privacy.unit=example", "privacy.noise_multiplier=1")
    one, two = steps(runtime_of(experiment), 2)
    assert named(experiment, context) == INITIAL_REFERENCE
    first, again = (train(experiment, context, 1, payload, after(one)) for payload in (one, b""))
    assert first.content["m"] == again.content["m"]
    ledger = NodeFolder(tmp_path / "state").ledger
    assert len(read_ledger(ledger).charges) == 1
    assert train(experiment, context, 2, two, after(one, two)).has_content()
    assert len(read_ledger(ledger).charges) == 2


def test_a_whole_vector_replaces_the_reference(experiment: Experiment, context: Context) -> None:
    one, two, _ = steps(runtime_of(experiment), 3)
    assert named(experiment, context) == INITIAL_REFERENCE
    assert train(experiment, context, 1, one, after(one)).has_content()
    whole = runtime_of(experiment).parameters.initial_shared(0).tobytes()
    assert train(experiment, context, 5, whole, b"the name").has_content()
    assert named(experiment, context) == b"the name"
    assert train(experiment, context, 4, b"", b"the name").has_error()
    # A server that went back to an earlier round sends a whole vector.
    assert train(experiment, context, 1, whole, b"an older").has_content()
    last = after(two, start=b"an older")
    assert train(experiment, context, 2, two, last).has_content()
    assert named(experiment, context) == last


@pytest.mark.parametrize(
    ("number", "payload", "words"),
    [
        (1, bytes(STEP), "lead to another vector than the one the message names"),
        (2, bytes(STEP), "steps to round 2 from round 1, and this client is at round 0"),
        (1, b"", "steps to round 1 from round 1, and this client is at round 0"),
        (1, bytes(STEP - 1), "ValueError"),
        (1, bytes(STEP) * 3 + b"x", "ValueError"),
        (1, b"\xff" * STEP, "ValueError"),
        (1, b"\xff" * WHOLE, "ValueError"),
    ],
    ids=["another", "missing", "none", "short", "long", "nan step", "nan vector"],
)
def test_hostile_steps_change_nothing(
    experiment: Experiment, context: Context, number: int, payload: bytes, words: str
) -> None:
    assert named(experiment, context) == INITIAL_REFERENCE
    reply = train(experiment, context, number, payload, b"8 bytes.")
    assert reply.has_error() and words in reply.error.reason
    assert named(experiment, context) == INITIAL_REFERENCE
    (one,) = steps(runtime_of(experiment), 1)
    assert train(experiment, context, 1, one, b"short").has_error()
    assert train(experiment, context, 1, one, after(one)).has_content()


@pytest.mark.parametrize(
    ("number", "payload", "words"),
    [
        (2, bytes(8), "lead to another vector than the one the message names"),
        (3, bytes(8), "steps to round 2 from round 1, and this client is at round 0"),
        (2, b"", "steps to round 1 from round 1, and this client is at round 0"),
        (2, bytes(7), "ValueError"),
        (2, bytes(8 * 9 + 1), "ValueError"),
        (2, b"\xff" * 8, "ValueError"),
        (2, np.full(2, 3e38, "<f4").tobytes(), "ValueError"),
        (2, b"\xff" * WHOLE, "ValueError"),
    ],
    ids=["another", "missing", "none", "short", "long", "nan", "overflow", "nan vector"],
)
def test_slopes_lead_to_the_servers_vector_and_hostile_ones_change_nothing(
    quick: Quick, context: Context, number: int, payload: bytes, words: str
) -> None:
    experiment = quick(*SLOPES)
    runtime = runtime_of(experiment)
    assert named(experiment, context) == INITIAL_REFERENCE
    assert train(experiment, context, 1, b"", INITIAL_REFERENCE).has_content()
    reply = train(experiment, context, number, payload, b"8 bytes.")
    assert reply.has_error() and words in reply.error.reason
    assert named(experiment, context) == INITIAL_REFERENCE
    vector = runtime.parameters.initial_shared(0)
    slopes = [encode_slopes(runtime, np.float32([[n, 0.5]])) for n in (1, 2)]
    for each, step in enumerate(slopes, 1):
        vector = decode_step(runtime, each, vector, step)
    assert train(experiment, context, 3, b"".join(slopes), after(*slopes)).has_content()
    assert named(experiment, context) == after(*slopes)
    data = recall(context, label(experiment.digest, ""))
    assert follow(data, 3, b"", after(*slopes), None).tobytes() == vector.tobytes()


def test_two_runs_of_one_experiment_have_two_references(
    experiment: Experiment, context: Context, tmp_path: Path
) -> None:
    (one,) = steps(runtime_of(experiment), 1)
    assert named(experiment, context) == INITIAL_REFERENCE
    assert train(experiment, context, 1, one, after(one)).has_content()
    other = replace(handshake_request(experiment, 0), run="0123456789abcdef")
    reply = relay.app(arriving("query.handshake", other), context)
    assert content_of(reply, HandshakeReply).reference == INITIAL_REFERENCE
    kept = NodeFolder(tmp_path / "state").kept / "reference"
    assert [path.stat().st_mode & 0o077 for path in kept.iterdir()] == [0]


def test_a_damaged_reference_is_said(
    experiment: Experiment, context: Context, tmp_path: Path
) -> None:
    (one,) = steps(runtime_of(experiment), 1)
    assert named(experiment, context) == INITIAL_REFERENCE
    assert train(experiment, context, 1, one, after(one)).has_content()
    (path,) = (NodeFolder(tmp_path / "state").kept / "reference").iterdir()
    path.write_bytes(b"damaged")
    request = handshake_request(experiment, 0)
    reply = relay.app(arriving("query.handshake", request), context)
    assert "reference vector is damaged; remove it" in reply.error.reason
