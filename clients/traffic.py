"""The node's record of its messages: time, run, round, and the content that left the site.

``messages.jsonl`` in the state folder (mode 0600) has a line for each answered message. The line is
written before the reply leaves the process: it includes every reply that left, unless the disk was
full, and replies that were lost on the way. At ``LARGEST`` bytes the file becomes
``messages.old.jsonl`` in place of an earlier one, so both together are bounded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from flwr.app import Message

from clients.folder import NodeFolder
from fedpeft.hosting.locks import locked
from fedpeft.wire import messages
from fedpeft.wire.messages import PAYLOAD, RECORD

LARGEST = 2 << 20  # bytes of each of the two files: about 7,000 messages
_LOCK = "messages.lock"
_REPLIES: dict[str, type] = {
    "query.handshake": messages.HandshakeReply,
    "query.prepare": messages.PrepareReply,
    "query.unmask": messages.UnmaskReply,
    "train": messages.TrainReply,
    "evaluate": messages.EvaluateReply,
}


def record(
    folder: NodeFolder,
    message: Message,
    reply: Message,
    down: int,
    up: int,
    seconds: float,
    name: str = "",
) -> None:
    """Append a line about a message and the reply that is about to leave.

    Args:
        folder: of the node.
        message: as it arrived.
        reply: to it.
        down: bytes of the serialized message.
        up: bytes of the serialized reply.
        seconds: that the answer took.
        name: of the run, given by the server's operator.

    Raises:
        OSError: the file cannot be written.
        UserError: it is too large, and another process moves it at this moment.
    """
    label = _request(message).get("x")
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": str(message.metadata.run_id),
        "name": name,
        "kind": message.metadata.message_type,
        "round": round_of(message),
        "label": label.hex() if isinstance(label, bytes) else "",
        "down": down,
        "up": up,
        "payload": 0,
        "seconds": round(seconds, 3),
        **_content(message.metadata.message_type, reply),
    }
    _append(folder, json.dumps(line) + "\n")


def round_of(message: Message) -> int | None:
    """Return the number of a message's round; None if it has none, or an invalid one."""
    # A number 0 is not sent: the start of a run.
    first = 0 if message.metadata.message_type in ("train", "evaluate") else None
    number = _request(message).get("r", first)
    return number if type(number) is int else None


def _request(message: Message) -> Mapping[str, Any]:
    return (message.content.get(RECORD) if message.has_content() else None) or {}


def recorded(folder: NodeFolder) -> Iterator[dict[str, Any]]:
    """Yield the lines about the messages of a node, the oldest first; skip damaged ones."""
    for path in (folder.old_messages, folder.messages):
        try:
            lines = path.read_text(encoding="utf-8").split("\n")
        except (OSError, UnicodeDecodeError):
            continue
        for line in lines:
            with suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict):
                    yield entry


def _content(kind: str, reply: Message) -> dict[str, Any]:
    """Return what a reply holds: bytes of each part, values of its numbers, or its error."""
    if reply.has_error():
        return {"error": reply.error.reason}
    parts = fields(_REPLIES[kind]) if kind in _REPLIES else ()
    names = {part.metadata["key"]: part.name for part in parts}
    content, numbers, values = {}, {}, reply.content.get(RECORD) or {}
    for key, value in values.items():
        name = names.get(key, key)
        if isinstance(value, bytes | str):
            content[name] = len(value)
        else:
            numbers[name] = value
    payload = values.get(PAYLOAD)
    return {
        "content": content,
        "numbers": numbers,
        "payload": len(payload) if isinstance(payload, bytes) else 0,
    }


def _append(folder: NodeFolder, line: str) -> None:
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    handle = os.open(folder.messages, flags, 0o600)
    try:
        os.write(handle, line.encode())  # in one piece, so that lines of processes do not mix
        large = os.fstat(handle).st_size > LARGEST
    finally:
        os.close(handle)
    if large:
        with locked(folder.path / _LOCK, "another process moves the file"):
            if folder.messages.stat().st_size > LARGEST:
                os.replace(folder.messages, folder.old_messages)
