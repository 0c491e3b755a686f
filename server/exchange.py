"""Send a message to each client and collect the replies that arrive in time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.errors import printable
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.wire.messages import RECORD, to_fields
from server.byte_ledger import ByteLedger
from server.clock import Clock, RealClock
from server.records import Kind

_TYPES = {
    "train": "train",
    "evaluate": "evaluate",
    "handshake": "query.handshake",
    "prepare": "query.prepare",
    "unmask": "query.unmask",
}
CLIENT_DIED = 8  # Flower's code for a ClientApp's process that was silent for a minute
NODE_GONE = 5  # Flower's code for a node that is no longer connected
_SILENT, _LATE = "no reply", "late"
LONGEST = 600  # characters kept of a node's text

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

    def missed(self, replies: int) -> str:
        """Return why a client failed that did not reply, when there are so many replies."""
        if self.suffices(replies):
            return f"{_LATE}: {replies} others were faster (federation.over_selection)"
        if self.deadline is not None and self.deadline <= self.timeout:
            return f"{_LATE}: no reply within {self.deadline:g} s (federation.deadline)"
        return f"{_SILENT} within {self.timeout:g} s"


def exchange(
    grid: Grid,
    kind: Kind,
    content: Callable[[int], object],
    nodes: Mapping[int, int],
    ledger: ByteLedger,
    patience: Patience,
    progress: Callable[[int, int], None] = lambda done, total: None,
    clock: Clock | None = None,
) -> tuple[dict[int, Message], dict[int, str]]:
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
        Replies and reasons of failures, by client, in client order.
    """
    send_to = partial(send, grid, kind, content, nodes, ledger)
    pending = send_to(sorted(nodes))
    replies: dict[int, Message] = {}
    failed: dict[int, str] = {}
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
            if not reply.has_error():
                replies[client] = reply
            elif reply.error.code == CLIENT_DIED and client not in repeated:
                repeated.add(client)
                pending |= send_to([client])
            else:
                failed[client] = reason_of(reply.error.code, reply.error.reason)
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
    clients: Sequence[int],
) -> dict[str, int]:
    """Send a message to each of ``clients``; return the clients by the ids of their messages."""
    messages = {
        client: Message(
            RecordDict({RECORD: ConfigRecord(to_fields(content(client)))}),
            dst_node_id=nodes[client],
            message_type=_TYPES[kind],
        )
        for client in clients
    }
    sent = dict(zip(grid.push_messages(messages.values()), messages, strict=True))
    for client, message in messages.items():  # after the push, which sets their ids
        ledger.add(kind, client, "down", message)
    return sent


def check_replies(
    replies: Mapping[int, Message], failed: dict[int, str], check: Callable[[int, Message], Content]
) -> dict[int, Content]:
    """Return the checked contents of replies, by client.

    Args:
        replies: by client.
        failed: gets the reasons of refusals, by client.
        check: returns the content of a client's reply, or raises.
    """
    checked = {}
    for client, reply in replies.items():
        try:
            checked[client] = check(client, reply)
        except ValueError as error:
            failed[client] = printable(f"refused: {error}", LONGEST)
        except Exception as error:  # a reply may hold anything
            failed[client] = printable(f"refused: {type(error).__name__}: {error}", LONGEST)
    return checked


def budget_spent(reason: str) -> bool:
    """Return whether a client failed because its privacy budget is spent."""
    return reason.startswith(reason_of(BudgetSpent.CODE, ""))


def was_late(reason: str) -> bool:
    """Return whether a client failed because it replied too late, if at all."""
    return reason.startswith(_LATE)


def unanswered(reason: str) -> bool:
    """Return whether a client failed without a word, so that it may have trained."""
    lost = (_LATE, _SILENT, *(reason_of(code, "") for code in (CLIENT_DIED, NODE_GONE)))
    return reason.startswith(lost)


def was_silent(reason: str) -> bool:
    """Return whether a client failed because it did not reply."""
    return reason.startswith(_SILENT)


def reason_of(code: int, text: str) -> str:
    """Return why a client failed that replied with an error."""
    return f"error {code}: {printable(text, LONGEST)}"
