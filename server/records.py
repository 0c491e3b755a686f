"""Records in the files of a run: lines of rounds.jsonl and bytes.jsonl, ``bytes`` of result.json.

The files hold exactly these keys. ``None`` is null in the files.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Kind = Literal["start", "train", "evaluate", "handshake", "prepare", "unmask"]
Way = Literal["up", "down"]
KINDS: tuple[Kind, ...] = ("train", "evaluate", "handshake", "start")
WAYS: tuple[Way, ...] = ("up", "down")


class Sizes(TypedDict):
    """Bytes of encoded vectors (payload) and of the whole serialized messages."""

    payload: int
    message: int


class BothWays(TypedDict):
    """Bytes from the server to clients (down) and back (up)."""

    down: Sizes
    up: Sizes


class Wire(TypedDict):
    """Bytes on the network: TCP payload at the server's gateway, see ``server.wire_bytes``."""

    down: int
    up: int


class RunBytes(BothWays):
    """Bytes of one or all rounds; ``down`` and ``up`` are those of training.

    ``start`` are those of sums before the first round, missing if there are none; ``wire`` is of
    all messages, handshakes and polling together; None in a simulation.
    """

    evaluate: BothWays
    handshake: BothWays
    start: NotRequired[BothWays]
    wire: Wire | None


class UpdateSizes(Sizes):
    """Bytes of one client's update; the payload is the sum of method and head."""

    method: int
    head: int


class ResultBytes(RunBytes):
    """The ``bytes`` of result.json."""

    per_client_round_up: UpdateSizes


class FailedClient(TypedDict):
    """A client that failed in a round, with the name of its node in a deployment."""

    client: int
    name: NotRequired[str]
    reason: str


class Measured(TypedDict):
    """The task vector after a round, evaluated on ``evaluated`` examples; None without evaluation.

    An infinite ``eval_loss`` is None, too. ``caveats`` are counts of what was cut before the score,
    those that are not zero, see ``fedpeft.tasks.caveats``.
    """

    score: float | None
    eval_loss: float | None
    metrics: dict[str, float | None] | None
    evaluated: int | None
    caveats: dict[str, float]


class Outcome(TypedDict):
    """Who took part in the training of a round.

    ``clients`` counts those that succeeded; ``late`` lists those that did not reply in time, see
    ``federation.deadline`` and ``federation.over_selection``.
    """

    clients: int
    failed: list[FailedClient]
    late: list[int]


class Learned(TypedDict):
    """Facts about the updates of a round.

    ``clipped`` lists the clients whose update was clipped, see ``federation.max_update_norm``.
    """

    clipped: list[int]
    loss: float | None


class RoundLine(Outcome, Learned, Measured):
    """A line of rounds.jsonl.

    ``virtual`` is the virtual time since the start of a simulation with ``[devices]``, in seconds.
    ``privacy`` holds what all rounds so far spent, a statement for each unit, see
    ``fedpeft.privacy.statement``.
    """

    round: int
    seconds: float
    virtual: float | None
    bytes: RunBytes
    epsilon: float | None
    privacy: dict[str, Any] | None


class ByteLine(TypedDict):
    """A line of bytes.jsonl: one kind of message of one client in one round.

    An evaluation after the early end of a run counts as a part of the round after the last one.

    Nodes refused before the server knew their clients are the clients -1, -2, ..., numbered within
    a round by ascending node id. ``up`` is missing if the client did not reply.
    """

    round: int
    client: int
    kind: Kind
    down: NotRequired[Sizes]
    up: NotRequired[Sizes]


class WireLine(TypedDict):
    """A line of bytes.jsonl in a deployment: bytes on the network of one client since the last.

    All traffic of its node counts: messages, handshakes, polling, TLS. The gateway writes its
    counts twice a second, so the end of a round may count to the next.
    """

    round: int
    client: int
    kind: Literal["wire"]
    down: int
    up: int


def of_kind(sizes: RunBytes, kind: Kind) -> BothWays:
    """Return the bytes of one kind of message; those of a sum under masks belong to training."""
    if kind == "start":
        return sizes.setdefault("start", no_bytes())
    return sizes[kind] if kind in ("evaluate", "handshake") else sizes


def kinds_of(sizes: RunBytes) -> list[Kind]:
    """Return the kinds of messages whose bytes are counted."""
    return [kind for kind in KINDS if kind != "start" or "start" in sizes]


def no_bytes() -> BothWays:
    """Return a count of no bytes."""
    return {"down": {"payload": 0, "message": 0}, "up": {"payload": 0, "message": 0}}
