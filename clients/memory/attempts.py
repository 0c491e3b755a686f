"""The training of one request at a deployed node: charged once, answered once.

Flower may deliver a message twice, and a process may be killed at any moment. For each run a file
holds the last request that began: first that its training has begun, then its reply, which is
stored before it leaves the node. A repeated request gets the stored reply. A request whose training
was interrupted is trained again without a second charge, because nothing of it has left the node.
A request that the file does not name is new, and is charged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message, RecordDict

from clients.folder import NodeFolder
from fedpeft.files import PRIVATE, keep_newest, write_together
from fedpeft.locks import locked
from fedpeft.privacy.ledger import Attempt, read_ledger
from fedpeft.wire.messages import RECORD, Request, from_fields

_KEPT = 4  # runs, as a reply may be large


@dataclass(frozen=True)
class _Stored:
    """The last request of a run that began; ``reply`` is None until its training has ended."""

    attempt: Attempt
    reply: dict[str, Any] | None = None


def train_once(
    folder: NodeFolder, message: Message, train: Callable[[Attempt], Message]
) -> Message:
    """Return the reply to a train message: the stored one if the request is repeated.

    Args:
        folder: of the node. Its processes train one at a time.
        message: as it arrived.
        train: trains and returns the reply, charging the privacy ledger for the attempt.

    Raises:
        UserError: another process trains until the message's time to live is over.
    """
    request = from_fields(Request, message.content.get(RECORD))
    path = folder.attempts / f"{request.label.hex()}.safetensors"
    taken = "another process of this node is training; try again later"
    with locked(folder.path / "train.lock", taken, message.metadata.ttl):
        stored = _read(path)
        if stored is None or stored.attempt.key != _key(request):
            stored = _Stored(Attempt(_key(request), _charges(folder.ledger)))
            _write(path, stored)
        elif stored.reply is None:
            charged = _charges(folder.ledger) > stored.attempt.charges
            stored = _Stored(replace(stored.attempt, charged=charged))
        if stored.reply is None:
            reply = train(stored.attempt)
            if reply.has_error():
                return reply
            stored = _Stored(stored.attempt, dict(reply.content[RECORD]))
            _write(path, stored)
    fields = dict(sorted((stored.reply or {}).items()))  # in one order, so that bytes are equal
    return Message(RecordDict({RECORD: ConfigRecord(fields)}), reply_to=message)


def _key(request: Request) -> str:
    """Return the SHA-256 of what a request asks for.

    A vector with a name may arrive as steps first, and when the round is repeated as none, because
    the client holds it by then.
    """
    total = hashlib.sha256(f"{request.label.hex()}|{request.round}|".encode())
    total.update(request.reference or request.vector)
    for part in (request.members, request.sealed):
        total.update(hashlib.sha256(part).digest())
    return total.hexdigest()


def _charges(ledger: Path) -> int:
    return len(read_ledger(ledger).charges) if ledger.exists() else 0


def _read(path: Path) -> _Stored | None:
    """Return the stored request; None if there is none or the file is damaged."""
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()["about"])
            vectors = {name: file.get_tensor(name).tobytes() for name in file.keys()}  # noqa: SIM118
        reply = None if about["reply"] is None else {**about["reply"], **vectors}
        return _Stored(Attempt(about["key"], about["charges"]), reply)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None


def _write(path: Path, stored: _Stored) -> None:
    from safetensors.numpy import save

    fields = stored.reply or {}
    parts = {key: value for key, value in fields.items() if isinstance(value, bytes)}
    arrays = {key: np.frombuffer(value, np.uint8) for key, value in parts.items()}
    rest = {key: value for key, value in fields.items() if key not in parts}
    attempt, reply = stored.attempt, None if stored.reply is None else rest
    about = {"key": attempt.key, "charges": attempt.charges, "reply": reply}
    path.parent.mkdir(mode=0o700, exist_ok=True)
    data = save(arrays, {"about": json.dumps(about)})
    write_together({path: (data, PRIVATE)}, replace=True)
    keep_newest(path.parent, _KEPT)
