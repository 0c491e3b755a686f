"""The Flower ClientApp: a node's answers to handshake, train and evaluate."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp

from clients.data import LocalData, local_data
from clients.errors import error_reply
from clients.memory import recall, remember
from clients.personal import completed, keep
from clients.privacy import Protection, Request, charge, hide, require_open, require_rules
from fedpeft.runtime import Runtime
from fedpeft.training import When, evaluate, train_cohort
from fedpeft.vector import decode, encode
from fedpeft.version import __version__

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
    """Keep the experiment, and say who is here and what would be used."""
    config = message.content["config"]
    toml, proposed = str(config["experiment"]), int(config["client"])
    if config.get("version", __version__) != __version__:
        # Settings of another version need not make sense here, so only this is said.
        other = ConfigRecord({"client": proposed, "examples": 0, "version": __version__})
        return Message(RecordDict({"node": other}), reply_to=message)
    run = str(config.get("run", ""))
    data = local_data(toml, context, proposed, run)
    require_rules(data)
    node = ConfigRecord(
        {"client": data.client, "examples": len(data.train), **data.runtime.identity}
    )
    remember(context, toml, data, run)
    return Message(RecordDict({"node": node}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train on this client's examples from the task vector that came."""
    return train_together([message], [context])[0]


@app.evaluate()
@answering_errors
def measure(message: Message, context: Context) -> Message:
    """Evaluate the task vector that came on this client's share of the dev set."""
    task = Assignment.read(message, context)
    require_open(task.data)
    dev = task.runtime.dev.select(task.data.dev)
    found = evaluate(task.runtime.model, task.start, dev)
    content = RecordDict(
        {
            "arrays": ArrayRecord({"statistics": Array(found.statistics)}),
            "metrics": MetricRecord({"loss-sum": found.loss_sum}),
        }
    )
    return Message(content, reply_to=message)


@dataclass(frozen=True)
class Assignment:
    """What one message asks of one client."""

    message: Message
    data: LocalData
    round: int
    start: np.ndarray  # task vector [P], with what is this client's own

    @classmethod
    def read(cls, message: Message, context: Context) -> Assignment:
        """Check a message against the experiment kept at the handshake.

        Raises:
            ClientError: no handshake came before, or the message belongs to another experiment.
        """
        config = message.content["config"]
        data = recall(context, str(config["experiment"]), str(config.get("run", "")))
        ours, codec = data.runtime.trainable, data.runtime.experiment.wire.codec
        array = message.content["arrays"]["vector"].numpy()
        shared = decode(array, codec, ours.shared.size, ours.numpy_dtype)
        round, trains = int(config["round"]), message.metadata.message_type == MessageType.TRAIN
        start = completed(data, shared, round - 1 if trains else round)
        return cls(message, data, round, start)

    @property
    def runtime(self) -> Runtime:
        """Of the experiment."""
        return self.data.runtime

    @property
    def request(self) -> Request:
        """What privacy needs to know of this assignment."""
        return Request(self.runtime.experiment, self.data, self.round, self.start)

    def reply(self, vector: np.ndarray, loss: float, protection: Protection) -> Message:
        """Return the message that carries the shared part [S] of a trained task vector.

        With privacy the vector and what has been spent are all that leaves the client: a training
        loss says something of the examples that no noise covers.
        """
        experiment = self.runtime.experiment
        said = {each["unit"]: json.dumps(each) for each in protection.statements}
        private = experiment.privacy.unit != "none"
        content = RecordDict(
            {
                "arrays": ArrayRecord({"vector": Array(encode(vector, experiment.wire.codec))}),
                "metrics": MetricRecord({} if private else {"loss": loss}),
                "config": ConfigRecord({"experiment": self.runtime.digest, **said}),
            }
        )
        return Message(content, reply_to=self.message)


def train_together(messages: Sequence[Message], contexts: Sequence[Context]) -> list[Message]:
    """Answer the train messages of several clients of one round, trained in one batch.

    A client whose message or data is at fault, or whose privacy budget is spent, gets an error
    reply; the others are trained.
    """
    replies: dict[int, Message] = {}
    ready: dict[int, tuple[Assignment, Protection]] = {}
    for place, (message, context) in enumerate(zip(messages, contexts, strict=True)):
        try:
            assignment = Assignment.read(message, context)
            ready[place] = assignment, charge(assignment.request)
        except Exception as error:
            replies[place] = error_reply(error, message)
    try:
        replies |= dict(zip(ready, _train([*ready.values()]), strict=True))
    except Exception as error:
        replies |= {place: error_reply(error, messages[place]) for place in ready}
    return [replies[place] for place in range(len(messages))]


def _train(assignments: list[tuple[Assignment, Protection]]) -> list[Message]:
    if not assignments:
        return []
    runtime, round = assignments[0][0].runtime, assignments[0][0].round
    experiment = runtime.experiment
    private = [protection.dpsgd for _, protection in assignments if protection.dpsgd]
    trained = train_cohort(
        runtime.model,
        np.stack([each.start for each, _ in assignments]),
        [runtime.train.select(each.data.train) for each, _ in assignments],
        [each.data.client for each, _ in assignments],
        experiment.local,
        When(experiment.seed, round, experiment.federation.rounds),
        private or None,
    )
    for (each, _), vector in zip(assignments, trained.vectors, strict=True):
        keep(each.data, each.round, vector)
    return [
        each.reply(hide(protection, each.request, vector), float(loss), protection)
        for (each, protection), vector, loss in zip(
            assignments, trained.vectors, trained.losses, strict=True
        )
    ]
