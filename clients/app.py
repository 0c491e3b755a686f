"""The Flower ClientApp: a node's answers to handshake, train and evaluate."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clients.data import dev_rows, train_rows
from clients.errors import ClientError, error_reply
from clients.privacy import Protection, Request, charge, hide
from fedpeft.runtime import Runtime, runtime_of
from fedpeft.training import When, evaluate, train_cohort
from fedpeft.vector import decode, encode

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
    toml = str(message.content["config"]["experiment"])
    runtime = runtime_of(toml)
    context.state["experiment"] = ConfigRecord({"toml": toml})
    node = ConfigRecord(
        {
            "client": int(context.node_config["partition-id"]),
            "examples": len(train_rows(context)),
            **runtime.identity,
        }
    )
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
    dev = task.runtime.dev.select(dev_rows(context, len(task.runtime.dev)))
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
    runtime: Runtime
    client: int
    round: int
    start: np.ndarray  # task vector [P]
    rows: np.ndarray  # indices of the client's training examples

    @classmethod
    def read(cls, message: Message, context: Context) -> Assignment:
        """Check a message against the experiment kept at the handshake.

        Raises:
            ClientError: no handshake came before, or the message belongs to another experiment.
        """
        kept = context.state.get("experiment")
        if kept is None:
            raise ClientError("no handshake came before this message")
        runtime = runtime_of(str(kept["toml"]))
        config = message.content["config"]
        if config["experiment"] != runtime.digest:
            raise ClientError("the message belongs to another experiment than the handshake")
        model, codec = runtime.model, runtime.experiment.wire.codec
        array = message.content["arrays"]["vector"].numpy()
        return cls(
            message,
            runtime,
            int(context.node_config["partition-id"]),
            int(config["round"]),
            decode(array, codec, model.layout.size, model.numpy_dtype),
            train_rows(context),
        )

    @property
    def request(self) -> Request:
        """What privacy needs to know of this assignment."""
        runtime, train = self.runtime, self.runtime.task.train
        return Request(runtime.experiment, self.client, self.round, self.start, train, self.rows)

    def reply(self, vector: np.ndarray, loss: float, protection: Protection) -> Message:
        """Return the message that carries a trained task vector [P].

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
            ready[place] = assignment, charge(assignment.request, context)
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
        [runtime.train.select(each.rows) for each, _ in assignments],
        [each.client for each, _ in assignments],
        experiment.local,
        When(experiment.seed, round, experiment.federation.rounds),
        private or None,
    )
    return [
        each.reply(hide(protection, each.request, vector), float(loss), protection)
        for (each, protection), vector, loss in zip(
            assignments, trained.vectors, trained.losses, strict=True
        )
    ]
