"""Send a message to each client and collect the replies that arrive in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.errors import printable
from fedpeft.wire.failures import Failure, FailureKind
from fedpeft.wire.messages import RECORD, to_fields
from server.byte_ledger import ByteLedger
from server.clock import Clock, RealClock
from server.records import Kind

_TYPES = {
    "start": "train",
    "train": "train",
    "evaluate": "evaluate",
    "handshake": "query.handshake",
    "prepare": "query.prepare",
    "unmask": "query.unmask",
}
LONGEST = 600  # characters kept of a node's text
#: Our words for errors that Flower makes, about a node and not by it.
_LOST = {
    FailureKind.GONE: "the node is not connected",
    FailureKind.DIED: "the node's process ended before it answered",
}

#: Seconds that a message outlives its timeout. Its age follows from the clocks of two machines,
#: which may differ by five minutes before the gateway refuses a node.
_MARGIN = 900.0
Content = TypeVar("Content")


@dataclass(frozen=True)
class Patience:
    """Limits of the wait for replies.

    Attributes:
        timeout: seconds until a client counts as silent.
        deadline: seconds until a client is late, if that is sooner.
        enough: replies after which the others are late.
    """

    timeout: float
    deadline: float | None = None
    enough: int | None = None

    @property
    def seconds(self) -> float:
        """The most seconds to wait."""
        return min(self.timeout, self.deadline or self.timeout)

    def suffices(self, replies: int) -> bool:
        """Return whether so many replies are enough."""
        return self.enough is not None and replies >= self.enough

    def missed(self, replies: int) -> Failure:
        """Return why a client failed that did not reply, when there are so many replies."""
        if self.suffices(replies):
            why = f"late: {replies} others were faster (federation.over_selection)"
            return Failure(FailureKind.LATE, why)
        if self.deadline is not None and self.deadline <= self.timeout:
            why = f"late: no reply within {self.deadline:g} s (federation.deadline)"
            return Failure(FailureKind.LATE, why)
        return Failure(FailureKind.SILENT, f"no reply within {self.timeout:g} s")


def exchange(
    grid: Grid,
    kind: Kind,
    content: Callable[[int], object],
    nodes: Mapping[int, int],
    ledger: ByteLedger,
    patience: Patience,
    progress: Callable[[int, int], None] = lambda done, total: None,
    clock: Clock | None = None,
) -> tuple[dict[int, Message], dict[int, Failure]]:
    """Send ``content`` to every client and wait for the replies.

    If a client's process died but its node is connected, the message is sent a second time.

    Args:
        grid: Flower's grid.
        kind: ``train``, ``evaluate`` or ``handshake``, also in the byte ledger.
        content: returns the fields for a client, see ``fedpeft.wire.messages``.
        nodes: client id -> node id.
        ledger: counts both directions.
        patience: how long to wait.
        progress: called with the number of replies and the number of clients.
        clock: of the run; None = the time of this machine.

    Returns:
        Replies and failures, by client, in client order.
    """
    send_to = partial(send, grid, kind, content, nodes, ledger, patience.timeout)
    pending = send_to(sorted(nodes))
    replies: dict[int, Message] = {}
    failed: dict[int, Failure] = {}
    repeated: set[int] = set()
    clock = clock or RealClock()
    begun = clock.now()
    until = begun + patience.seconds
    while pending and clock.now() < until and not patience.suffices(len(replies)):
        arrived = list(grid.pull_messages(list(pending)))
        if clock.now() >= until:  # a grid in this process computes replies in the pull
            break
        for reply in arrived:
            # Not by its sender: that of an error may be another node. A site may send several
            # replies to one message, and replies to messages that do not exist.
            client = pending.pop(reply.metadata.reply_to_message_id, None)
            if client is None:
                continue
            ledger.add(kind, client, "up", reply)
            failure = failure_of(reply)
            if failure is None:
                replies[client] = reply
            elif failure.kind is FailureKind.DIED and client not in repeated:
                repeated.add(client)
                pending |= send_to([client])
            else:
                trained = client in repeated and failure.kind is FailureKind.UNCHARGED  # perhaps
                failed[client] = replace(failure, kind=FailureKind.DIED) if trained else failure
        progress(len(replies) + len(failed), len(nodes))
        if not arrived:
            clock.rest(begun, until)
    failed |= dict.fromkeys(pending.values(), patience.missed(len(replies)))
    return dict(sorted(replies.items())), dict(sorted(failed.items()))


def send(
    grid: Grid,
    kind: Kind,
    content: Callable[[int], object],
    nodes: Mapping[int, int],
    ledger: ByteLedger,
    timeout: float,
    clients: Sequence[int],
) -> dict[str, int]:
    """Send a message to each of ``clients``; return the clients by the ids of their messages.

    A message lives as long as its reply is waited for, ``timeout`` seconds, and a margin: Flower's
    own limit is 12 hours, after which it would lose the work of a client that is still in time.
    """
    messages = {
        client: Message(
            RecordDict({RECORD: ConfigRecord(to_fields(content(client)))}),
            dst_node_id=nodes[client],
            message_type=_TYPES[kind],
            ttl=timeout + _MARGIN,
        )
        for client in clients
    }
    sent = dict(zip(grid.push_messages(messages.values()), messages, strict=True))
    for client, message in messages.items():  # after the push, which sets their ids
        ledger.add(kind, client, "down", message)
    return sent


def check_replies(
    replies: Mapping[int, Message],
    failed: dict[int, Failure],
    check: Callable[[int, Message], Content],
) -> dict[int, Content]:
    """Return the checked contents of replies, by client.

    Args:
        replies: by client.
        failed: gets the refusals, by client.
        check: returns the content of a client's reply, or raises.
    """
    checked = {}
    for client, reply in replies.items():
        try:
            checked[client] = check(client, reply)
        except ValueError as error:
            failed[client] = refused(str(error))
        except Exception as error:  # a reply may hold anything
            failed[client] = refused(f"{type(error).__name__}: {error}")
    return checked


def refused(why: str) -> Failure:
    """Return the failure of a client whose reply is invalid."""
    return Failure(FailureKind.INVALID, printable(f"refused: {why}", LONGEST))


def failure_of(reply: Message) -> Failure | None:
    """Return the failure that an error reply reports; None for a reply with content."""
    if not reply.has_error():
        return None
    code, reason = reply.error.code, reply.error.reason
    kind = FailureKind.of_code(code)
    text = _LOST.get(kind) or f"error {code}: {printable(reason, LONGEST)}"
    return Failure(kind, text)
