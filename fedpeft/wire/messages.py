"""The fields of every message between server and client.

A message is one Flower ConfigRecord named ``RECORD``: each further Flower object would be a request
of its own on the wire. Keys have one letter, and fields with their default value are not sent.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeVar

RECORD = "m"
PAYLOAD = "v"  # key of the encoded vector in all messages that have one
LABEL_BYTES = 8
REFERENCE_BYTES = 8
INITIAL_REFERENCE = bytes(REFERENCE_BYTES)  # name of the initial vector
EXPERIMENT_BYTES = 1 << 16  # largest text of an experiment

Fields = dict[str, int | float | str | bytes]
MessageT = TypeVar("MessageT")


def _field(key: str, kind: type, default: Any = None) -> Any:
    return field(default=default, metadata={"key": key, "kind": kind})


@dataclass(frozen=True, kw_only=True)
class HandshakeRequest:
    """Server to node: the experiment of a run.

    Attributes:
        version: of the server's fedpeft.
        digest: SHA-256 of the experiment.
        experiment: the experiment as packed TOML; missing if the node has received it before.
        client: number that the node is to host; missing for a simulated node, which knows it.
        run: name of a deployment's run.
    """

    version: str = _field("s", str, "")
    digest: bytes = _field("d", bytes, b"")
    experiment: bytes = _field("e", bytes, b"")
    client: int | None = _field("c", int)
    run: str = _field("n", str, "")


@dataclass(frozen=True, kw_only=True)
class HandshakeReply:
    """Node to server: its client and its identity, see ``Runtime.identity``.

    Attributes:
        version: of the node's fedpeft. A node of another version sends nothing more.
        unknown: 1 if the node does not have the experiment, which the server then sends.
        client: number of the client.
        examples: number of training examples.
        reference: name of the vector that the client holds, see ``server/downlink.py``.
        start: name of the start that the client holds, see ``Request``.
        experiment, projection, layout, labels, backbone: SHA-256 digests that the server compares
            with its own.
        peer: how the client introduces itself to its peers, for sums under masks.
        weights: form in which the node holds the frozen weights, see ``engine.weights``.
    """

    version: str = _field("s", str, "")
    unknown: int = _field("u", int, 0)
    client: int = _field("c", int, -1)
    examples: int = _field("x", int, 0)
    reference: bytes = _field("r", bytes, INITIAL_REFERENCE)
    experiment: bytes = _field("d", bytes, b"")
    projection: bytes = _field("p", bytes, b"")
    layout: bytes = _field("l", bytes, b"")
    labels: bytes = _field("a", bytes, b"")
    backbone: bytes = _field("b", bytes, b"")
    peer: bytes = _field("k", bytes, b"")
    weights: str = _field("w", str, "float32")
    start: bytes = _field("t", bytes, b"")


@dataclass(frozen=True, kw_only=True)
class Request:
    """Server to client: train or evaluate a task vector.

    Attributes:
        vector: the encoded task vector, or steps to it.
        round: number of the round, from 1; 0 asks for the moments of the client's features, see
            ``fedpeft.starting``.
        label: names experiment and run, see ``label``.
        reference: name of the vector, where it continues from what the client holds.
        start: name of the vector that the run starts from, where the message refers to it and the
            seed does not give it; for a client that does not hold it, then its head.
        members: for a sum under masks, each client that masks its update, see
            ``fedpeft.secure.parts.Member``.
        sealed: for a sum, shares that members sent the receiver, under one-time pads, in order.
        clip_norm: for a sum, the norm at which a client clips its update.
        max_weight: for a sum, the largest weight among the clients; each scales by its own over it.
    """

    vector: bytes = _field(PAYLOAD, bytes, b"")
    round: int = _field("r", int, 0)
    label: bytes = _field("x", bytes, b"")
    reference: bytes = _field("h", bytes, b"")
    start: bytes = _field("t", bytes, b"")
    members: bytes = _field("m", bytes, b"")
    sealed: bytes = _field("s", bytes, b"")
    clip_norm: float = _field("b", float, 0.0)
    max_weight: float = _field("w", float, 1.0)


@dataclass(frozen=True, kw_only=True)
class PrepareRequest:
    """Server to client: make keys for a round of secure aggregation.

    Attributes:
        round: number of the round, from 1.
        label: as in ``Request``.
        peers: the clients of the round, see ``fedpeft.secure.keys.Peer``, in order.
    """

    round: int = _field("r", int, 0)
    label: bytes = _field("x", bytes, b"")
    peers: bytes = _field("p", bytes, b"")


@dataclass(frozen=True, kw_only=True)
class PrepareReply:
    """Client to server: its public key of the round, and shares of its secrets.

    Attributes:
        key: public X25519 key.
        holder_seed: of the choice of its holders, see ``fedpeft.secure.holders``.
        signature: of both, see ``fedpeft.secure.parts.Member``.
        sealed: for each holder that does not derive its shares, in order, both of them under a
            one-time pad.
        digests: for each holder, in order, digests of both of its shares.
    """

    key: bytes = _field("k", bytes, b"")
    holder_seed: bytes = _field("h", bytes, b"")
    signature: bytes = _field("g", bytes, b"")
    sealed: bytes = _field("s", bytes, b"")
    digests: bytes = _field("d", bytes, b"")


@dataclass(frozen=True, kw_only=True)
class UnmaskRequest:
    """Server to client: reveal a share for each client that masked its update.

    Attributes:
        round: number of the round, from 1.
        label: as in ``Request``.
        survivors: numbers of the clients whose masked updates arrived, uint32, in order.
    """

    round: int = _field("r", int, 0)
    label: bytes = _field("x", bytes, b"")
    survivors: bytes = _field("s", bytes, b"")


@dataclass(frozen=True, kw_only=True)
class UnmaskReply:
    """Client to server: its shares, one for each member whose shares it holds, in order."""

    shares: bytes = _field("s", bytes, b"")


@dataclass(frozen=True, kw_only=True)
class TrainReply:
    """Client to server: the trained task vector.

    Attributes:
        vector: the encoded task vector; for round 0 the encoded moments.
        loss: mean training loss; missing with privacy, because no noise covers it.
        example: ``fedpeft.privacy.statement.Composition`` of the charges that protect examples.
        client: the same of the charges that protect the client, where it adds that noise.
        steps: local steps; missing unless a client may stop before it has done all.
    """

    vector: bytes = _field(PAYLOAD, bytes, b"")
    loss: float | None = _field("l", float)
    example: bytes = _field("e", bytes, b"")
    client: bytes = _field("c", bytes, b"")
    steps: int = _field("s", int, 0)


@dataclass(frozen=True, kw_only=True)
class EvaluateReply:
    """Client to server: the sums of an evaluation.

    Attributes:
        statistics: sufficient statistics of the metrics, float64, see ``fedpeft.tasks.metrics``.
        loss_sum: summed loss of the examples.
        counts: of what was cut, float64, see ``fedpeft.tasks.caveats``; empty if nothing was.
    """

    statistics: bytes = _field(PAYLOAD, bytes, b"")
    loss_sum: float | None = _field("l", float)
    counts: bytes = _field("c", bytes, b"")


def to_fields(message: object) -> Fields:
    """Return the fields of a message, to be sent as a ConfigRecord."""
    values = {entry: getattr(message, entry.name) for entry in fields(message)}  # type: ignore[arg-type]
    return {entry.metadata["key"]: v for entry, v in values.items() if v != entry.default}


def from_fields(kind: type[MessageT], received: object) -> MessageT:
    """Return the message of received fields, which are not trusted.

    Raises:
        ValueError: a field has another type, or is unknown; values are not quoted.
    """
    if not isinstance(received, Mapping):
        raise ValueError("the message has no record of fields")
    known = {entry.metadata["key"]: entry for entry in fields(kind)}  # type: ignore[arg-type]
    if unknown := received.keys() - known.keys():
        raise ValueError(f"the message has {len(unknown)} unknown fields")
    values = {}
    for key, value in received.items():
        entry = known[key]
        if type(value) is not entry.metadata["kind"]:
            expected = entry.metadata["kind"].__name__
            raise ValueError(f"{entry.name} is {type(value).__name__}, expected {expected}")
        values[entry.name] = value
    return kind(**values)


def payload_bytes(received: object) -> int:
    """Return the length of the encoded vector in a message's fields, 0 without one."""
    vector = received.get(PAYLOAD) if isinstance(received, Mapping) else None
    return len(vector) if isinstance(vector, bytes) else 0


def label(digest: str, run: str) -> bytes:
    """Return the short name of an experiment and run in requests: 8 bytes of SHA-256.

    A node finds its experiment by it. Only the server chooses both, so it cannot be used against
    another server; handshakes and ledgers have the full digest.

    Args:
        digest: of the experiment, hex.
        run: name of a deployment's run, or "".
    """
    return hashlib.sha256(f"{digest}|{run}".encode()).digest()[:LABEL_BYTES]


def start_name(head: bytes) -> bytes:
    """Return the name of the vector that a run starts from, by the bytes of its head.

    b"" if clients need no head.
    """
    return hashlib.sha256(head).digest()[:REFERENCE_BYTES] if head else b""


def next_reference(reference: bytes, step: bytes) -> bytes:
    """Return the name of the vector that a step leads to from another one."""
    return hashlib.sha256(reference + step).digest()[:REFERENCE_BYTES]


def pack_experiment(toml: str) -> bytes:
    """Return the compressed text of an experiment."""
    return zlib.compress(toml.encode(), 9)


@lru_cache(maxsize=4)
def unpack_experiment(data: bytes) -> str:
    """Return the text of a received experiment, which is not trusted.

    Clients of one process share the text.

    Raises:
        ValueError: it is not compressed text of at most ``EXPERIMENT_BYTES`` bytes.
    """
    unpacker = zlib.decompressobj()
    try:
        text = unpacker.decompress(data, EXPERIMENT_BYTES)
        if not unpacker.eof:  # more text than allowed, or a part is missing
            raise ValueError
        return text.decode()
    except (zlib.error, ValueError):
        raise ValueError(
            f"the experiment is not a compressed text of at most {EXPERIMENT_BYTES} bytes"
        ) from None
