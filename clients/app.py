"""The Flower ClientApp: the handlers of handshake, train and evaluate messages.

Every message is checked against the experiment received in the handshake, and every round is
charged to the client's privacy ledger before anything is computed from its data.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from clients.assignment import Assignment
from clients.attempts import train_once
from clients.charging import Protection, charge, hide
from clients.data import STATE, local_data
from clients.deadline import limit_of
from clients.errors import (
    BEFORE_CHARGE,
    ClientError,
    checking_settings,
    error_reply,
    withheld,
)
from clients.folder import NodeFolder
from clients.kept import keep_personal
from clients.masking import reveal
from clients.memory import kept_experiment, recall, remember
from clients.preparation import introduce, prepare
from clients.reference import held, held_start
from clients.rules import require_open, require_rules
from fedpeft import training
from fedpeft.nested import fixed_numbers
from fedpeft.privacy.ledger import Attempt
from fedpeft.profiling import phase
from fedpeft.randomness import When
from fedpeft.starting import encode_moments, moments_of
from fedpeft.version import __version__
from fedpeft.wire.formats import encode
from fedpeft.wire.messages import (
    RECORD,
    EvaluateReply,
    HandshakeReply,
    HandshakeRequest,
    PrepareRequest,
    TrainReply,
    UnmaskReply,
    UnmaskRequest,
    from_fields,
    to_fields,
    unpack_experiment,
)

app = ClientApp()
Answer = Callable[[Message, Context], Message]


def answering_errors(answer: Answer) -> Answer:
    """Turn an exception into an error reply, so that one client never ends a run."""

    @functools.wraps(answer)
    def guarded(message: Message, context: Context) -> Message:
        try:
            return answer(message, context)
        except Exception as error:
            return error_reply(error, message)

    return guarded


@app.query("handshake")
@answering_errors
def handshake(message: Message, context: Context) -> Message:
    """Keep the experiment; reply with the client's number, its examples and the identity.

    A node with another version replies only with its version, as it may not know the settings.
    """
    request = from_fields(HandshakeRequest, message.content.get(RECORD))
    if request.version != __version__:
        client = -1 if request.client is None else request.client
        return _reply(HandshakeReply(version=__version__, client=client), message)
    if not re.fullmatch("([0-9a-f]{16})?", request.run):  # it becomes part of file names
        raise ClientError("the name of the run is not 16 hexadecimal digits")
    toml = unpack_experiment(request.experiment) if request.experiment else ""
    toml = toml or kept_experiment(context, request.digest.hex(), request.run)
    if not toml:
        return _reply(HandshakeReply(version=__version__, unknown=1), message)
    proposed = -1 if request.client is None else request.client
    data = local_data(toml, context, proposed, request.run)
    require_rules(data)
    with checking_settings():
        identity = data.runtime.identity
    digests: dict[str, Any] = {
        name: bytes.fromhex(value) for name, value in identity.items() if name != "version"
    }
    client, examples, peer = data.client, data.examples, introduce(data)
    remember(context, toml, data, request.run)
    reply = HandshakeReply(
        version=__version__,
        client=client,
        examples=examples,
        reference=held(data),
        peer=peer,
        weights=data.runtime.held,
        start=held_start(data),
        **digests,
    )
    return _reply(reply, message)


def _reply(content: object, message: Message) -> Message:
    record = RecordDict({RECORD: ConfigRecord(to_fields(content))})
    return Message(record, reply_to=message)


@app.query("prepare")
@answering_errors
def prepare_round(message: Message, context: Context) -> Message:
    """Make keys for a round whose updates are summed under masks; share their secrets."""
    request = from_fields(PrepareRequest, message.content.get(RECORD))
    data = recall(context, request.label)
    require_rules(data)
    with phase("masking"):
        return _reply(prepare(data, request.round, request.peers), message)


@app.query("unmask")
@answering_errors
def unmask(message: Message, context: Context) -> Message:
    """Reveal a share for each client that masked its update in a round, once."""
    request = from_fields(UnmaskRequest, message.content.get(RECORD))
    data = recall(context, request.label)
    with phase("masking"):
        shares = reveal(data, request.round, request.survivors)
    return _reply(UnmaskReply(shares=shares), message)


@app.train()
@answering_errors
def train(message: Message, context: Context) -> Message:
    """Train the received task vector on this client's examples; at a deployed node, only once."""
    if STATE not in context.node_config:
        return train_together([message], [context])[0]
    folder = NodeFolder(Path(str(context.node_config[STATE])))
    return train_once(
        folder, message, lambda attempt: train_together([message], [context], attempt)[0]
    )


def train_together(
    messages: Sequence[Message], contexts: Sequence[Context], attempt: Attempt | None = None
) -> list[Message]:
    """Answer the train messages of several clients of one round, trained in one batch.

    A client whose message or data is invalid, or whose privacy budget is spent, gets an error
    reply; the others are trained.
    """
    replies: dict[int, Message] = {}
    ready: dict[int, tuple[Assignment, Protection]] = {}
    for index, (message, context) in enumerate(zip(messages, contexts, strict=True)):
        try:
            assignment = Assignment.read(message, context, attempt)
            ready[index] = assignment, charge(assignment)
        except Exception as error:
            before = attempt is not None and attempt.charged  # by an earlier try
            charged = before or not isinstance(error, BEFORE_CHARGE)
            replies[index] = error_reply(error, message, charged)
    try:
        with withheld(any(assignment.data.limited for assignment, _ in ready.values())):
            replies |= dict(zip(ready, _train([*ready.values()]), strict=True))
    except Exception as error:
        replies |= {index: error_reply(error, messages[index]) for index in ready}
    return [replies[index] for index in range(len(messages))]


def _train(charged: list[tuple[Assignment, Protection]]) -> list[Message]:
    """Train the clients of one round whose ledgers are charged, and return their replies."""
    if not charged:
        return []
    assignments = [assignment for assignment, _ in charged]
    if not assignments[0].round:
        return [_moments_reply(assignment) for assignment in assignments]
    runtime, experiment = assignments[0].data.rows.runtime, assignments[0].experiment
    clients = [assignment.client for assignment in assignments]
    trained = training.train_cohort(
        runtime.model,
        np.stack([assignment.start for assignment in assignments]),
        [assignment.data.training for assignment in assignments],
        clients,
        experiment.local,
        When(experiment.seed, assignments[0].round, experiment.federation.rounds),
        [protection.dpsgd for _, protection in charged if protection.dpsgd] or None,
        fixed_numbers(runtime.parameters, experiment, clients),
        limit_of(assignments),
        runtime.head_rate,
    )
    for assignment, vector in zip(assignments, trained.vectors, strict=True):
        keep_personal(assignment.data, assignment.round, vector)
    replies = []
    for (assignment, protection), vector, slopes, loss, steps in zip(
        charged, trained.vectors, trained.slopes, trained.losses, trained.steps, strict=True
    ):
        hidden = hide(protection, assignment, vector)
        update = assignment.encode(hidden, slopes, float(loss))
        replies.append(_trained_reply(assignment, update, float(loss), int(steps), protection))
    return replies


def _moments_reply(assignment: Assignment) -> Message:
    """Return the reply with the moments of a client's features, see ``fedpeft.starting``."""
    data = assignment.data
    moments = moments_of(data.rows.runtime.model, assignment.start, data.training)
    code = encode_moments(data.runtime, data.client, moments)
    return _reply(TrainReply(vector=code), assignment.message)


def _trained_reply(
    assignment: Assignment, update: bytes, loss: float, steps: int, protection: Protection
) -> Message:
    """Return the reply with an encoded update.

    With privacy, only the vector, the statements of the privacy spent and the number of steps leave
    the client: no noise covers the training loss.
    """
    experiment = assignment.experiment
    tells_loss = experiment.privacy.unit == "none" and not experiment.federation.secure
    reply = TrainReply(
        vector=update,
        loss=loss if tells_loss else None,
        steps=steps if experiment.federation.partial else 0,
        **{unit: composition.to_bytes() for unit, composition in protection.statements},
    )
    return _reply(reply, assignment.message)


@app.evaluate()
@answering_errors
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the received task vector on this client's share of the dev set."""
    assignment = Assignment.read(message, context)
    require_open(assignment.data)
    data = assignment.data
    result = training.evaluate(data.rows.runtime.model, assignment.start, data.evaluation)
    counts = encode(result.counts, "float64") if result.counts.any() else b""
    statistics = encode(result.statistics, "float64")
    reply = EvaluateReply(statistics=statistics, loss_sum=result.loss_sum, counts=counts)
    return _reply(reply, message)
