"""A grid on which the malicious clients of a round send what the attack makes of the honest ones.

The attackers know everything: all honest updates of the round, and the server's strategy. They
train like the others, and their replies are replaced before the server pulls them, in the run's
codec. The server sees nothing but replies, as in a deployment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType

from fedpeft.runtime import Runtime
from fedpeft.simulated.adversary import malicious
from fedpeft.updates.transfer import decode_down, decode_up, encode_up
from fedpeft.wire.messages import RECORD, Request, TrainReply, from_fields, to_fields
from simulations.engines.adversary import craft
from simulations.engines.grid import CohortGrid, WrappedGrid


class AdversaryGrid(WrappedGrid):
    """Replaces the replies of malicious clients.

    Args:
        inner: runs the clients.
        runtime: of the run.
    """

    def __init__(self, inner: CohortGrid, runtime: Runtime):
        super().__init__(inner)
        self._runtime = runtime
        self._malicious = malicious(runtime.experiment)
        self._asked: dict[str, Message] = {}  # training requests of this round by their ids
        self._replies: dict[str, Message] = {}  # to them, as the clients sent them

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are run."""
        sent = [*messages]
        ids = self._inner.push_messages(sent)
        self._asked = {
            message_id: message
            for message_id, message in zip(ids, sent, strict=True)
            if message.metadata.message_type == MessageType.TRAIN
        }
        self._replies = {}
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the next replies; those of malicious clients after all others of the round."""
        now = []
        for reply in self._inner.pull_messages(message_ids):
            asked = reply.metadata.reply_to_message_id
            if asked not in self._asked:
                now.append(reply)
                continue
            self._replies[asked] = reply
            if not self._is_attack(asked):
                now.append(reply)
        if self._asked and len(self._replies) == len(self._asked):
            now += self._attacked()
            self._asked = {}
        return now

    def _client(self, asked: str) -> int:
        return self._inner.client_of(self._asked[asked])

    def _is_attack(self, asked: str) -> bool:
        return self._client(asked) in self._malicious and not self._replies[asked].has_error()

    def _attacked(self) -> list[Message]:
        """Return the replies of the malicious clients of a round in which all have replied."""
        asked = {self._client(each): each for each in self._asked if self._is_attack(each)}
        if not asked:
            return []
        request = from_fields(Request, next(iter(self._asked.values())).content.get(RECORD))
        number, start = request.round, decode_down(self._runtime, request.round, request.vector)
        crafted = craft(self._runtime.experiment, number, self._changes(number, start), [*asked])
        for client, change in crafted.items():
            vector = (start + change).astype(start.dtype)
            code = encode_up(self._runtime, number, client, start, vector)
            reply = self._replies[asked[client]]
            reply.content[RECORD] = ConfigRecord(to_fields(replace(_read(reply), vector=code)))
        return [self._replies[each] for each in asked.values()]

    def _changes(self, number: int, start: np.ndarray) -> dict[int, np.ndarray]:
        """Return the changes float64 [P] of all clients that trained in a round, by client."""
        changes = {}
        for asked, reply in self._replies.items():
            if not reply.has_error():
                client = self._client(asked)
                vector = decode_up(self._runtime, number, client, start, _read(reply).vector)
                changes[client] = np.subtract(vector, start, dtype=np.float64)
        return changes


def _read(reply: Message) -> TrainReply:
    return from_fields(TrainReply, reply.content.get(RECORD))
