"""Bytes of a train reply: the encoded vector, fedpeft's other fields, and Flower's framing.

The framing is that of Flower 1.41, measured in ``tests/fedpeft/wire/test_framing.py`` on messages
whose ids and times take the most bytes. A message of a deployment is about 10 bytes shorter, since
ids are random numbers of variable length, and one of a simulation, with small ids, about 30.
"""

from __future__ import annotations

#: Metadata, names and lengths of a reply with an empty vector and nothing else.
_FRAMING = 211
_TASK_ID = 11  # of the server's task, which Flower's deployment engine copies into replies
_LOSS = 16  # a float64 with its key
_STEPS = 12  # the number of local steps, below 2^27, with its key
#: A privacy statement of one mechanism with its key. It grows by 24 bytes for each change of the
#: noise or the sampling rate in a client's life, which no one knows before.
_STATEMENT = 41
#: Nested records whose lengths are written as variable-length integers, 7 bits a byte.
_LENGTHS = 6


def train_reply_bytes(payload: int, statements: int = 0, steps: bool = False) -> int:
    """Return an upper limit of the bytes of a train reply.

    Args:
        payload: bytes of the encoded vector.
        statements: number of privacy statements; without any, the reply has the loss.
        steps: whether the reply says how many local steps were done.
    """
    extra = (_STATEMENT * statements or _LOSS) + _STEPS * steps
    content = payload + extra + 64  # 64: names and lengths around the fields, rounded up
    longer = (content.bit_length() - 1) // 7
    return _FRAMING + _TASK_ID + extra + _LENGTHS * longer + payload
