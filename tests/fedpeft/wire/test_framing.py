"""The limit of a train reply's bytes, against Flower messages whose ids take the most bytes."""

from __future__ import annotations

from hashlib import sha256
from itertools import product

from flwr.app import ConfigRecord, Metadata, RecordDict
from flwr.app.message.message import make_message
from flwr.common.serde import message_to_proto

from fedpeft.wire.framing import train_reply_bytes
from fedpeft.wire.messages import RECORD, TrainReply, to_fields

LARGEST = 2**64 - 1
STATEMENT = bytes(32)  # of one mechanism


def longest(reply: TrainReply) -> int:
    """Return the bytes of a reply with the largest ids and the server's task."""
    metadata = Metadata(
        run_id=LARGEST,
        message_id=sha256(b"reply").hexdigest(),
        src_node_id=LARGEST,
        dst_node_id=LARGEST,
        reply_to_message_id=sha256(b"request").hexdigest(),
        group_id="",
        created_at=1.79e9,
        ttl=43200.0,
        message_type="train",
        dst_task_id=LARGEST,
    )
    content = RecordDict({RECORD: ConfigRecord(to_fields(reply))})
    return message_to_proto(make_message(metadata=metadata, content=content)).ByteSize()


PAYLOADS = (8, 60, 100, 127, 128, 229, 7176, 16_300, 16_384, 3_000_000)


def test_the_limit_is_reached_within_fifteen_bytes() -> None:
    for payload, statements, steps in product(PAYLOADS, (0, 1, 2), (0, 1, 2**27 - 1)):
        example, client = (STATEMENT if statements > kept else b"" for kept in (0, 1))
        loss = None if statements else 0.5
        said = {"loss": loss, "example": example, "client": client, "steps": steps}
        reply = TrainReply(vector=bytes(payload), **said)
        spare = train_reply_bytes(payload, statements, steps > 0) - longest(reply)
        assert 0 <= spare <= 15, (payload, statements, steps)
