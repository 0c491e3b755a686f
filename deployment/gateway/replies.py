"""Replies that a node sends again, because the connection ended before it got the answer.

A SuperNode announces a reply, with the ids of its objects, and then sends the objects. Once the
ServerApp has asked for the reply, the SuperLink of flwr 1.41 no longer knows that it was announced:
to a repeated announcement it answers that it needs no object. And it refuses an object that it has
already. In both cases the SuperNode stops, and the reply is lost. The gateway therefore amends the
SuperLink's answers, from its database; see :class:`deployment.gateway.mailbox.Mailbox`.
"""

from __future__ import annotations

import re

from deployment.gateway.mailbox import Mailbox

_ANNOUNCE, _PUSH = "/v1/fleet/push-messages", "/v1/fleet/push-object"
PATHS = frozenset((_ANNOUNCE, _PUSH))
START = 128  # bytes of a PushObjectRequest with the id of the object

# Fields of Flower's messages (Protocol Buffers): tag, length, and the 64 characters of an id.
# PushObjectRequest.object_id, and PushMessagesResponse.objects_to_push:
_OBJECT, _OBJECTS = re.compile(rb"\x1a\x40([0-9a-f]{64})"), b"\x1a\x40%b"
_ANNOUNCED = re.compile(rb"\x0a\x40([0-9a-f]{64})")  # a key of PushMessagesResponse.results
_SESSION = b"\x22%c%b"  # PushMessagesResponse.session_id
_STORED = b"\x08\x01"  # PushObjectResponse(stored=True)


def amended(mailbox: Mailbox, path: str, start: bytes, answer: bytes) -> bytes:
    """Return the SuperLink's answer to a part of a reply as it should be if the part is repeated.

    Args:
        mailbox: of the SuperLink.
        path: of the request, one of ``PATHS``.
        start: of the request's body.
        answer: the body of the SuperLink's answer.

    Raises:
        sqlite3.Error: the database cannot be used.
    """
    if path == _ANNOUNCE:
        return _with_needed_objects(mailbox, answer)
    pushed = _OBJECT.search(start)
    refused = not answer  # PushObjectResponse(stored=False) has no bytes
    return _STORED if refused and pushed and mailbox.has_object(pushed[1].decode()) else answer


def _with_needed_objects(mailbox: Mailbox, answer: bytes) -> bytes:
    """Return a PushMessagesResponse with the objects that the SuperLink still needs."""
    reply = _ANNOUNCED.search(answer)
    if reply is None or _OBJECT.search(answer):
        return answer
    session, objects = mailbox.needed(reply[1].decode())
    if not objects:
        return answer
    # Of concatenated messages, the last session and all objects count.
    added = _SESSION % (len(session), session.encode())
    return answer + added + b"".join(_OBJECTS % number.encode() for number in objects)
