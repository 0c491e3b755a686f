"""Sending one message to each of some clients and collecting what comes back in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.privacy.ledger import BudgetSpent
from server.ledger import ByteLedger

_TYPES = {"train": "train", "evaluate": "evaluate", "handshake": "query.handshake"}
_POLL = 0.05  # seconds between looks for replies
CLIENT_DIED = 8  # Flower's code for a ClientApp's process that has said nothing for a minute
_LONGEST = 600  # characters of a node's words that are kept


def exchange(
    grid: Grid,
    kind: str,
    content: Callable[[int], RecordDict],
    nodes: Mapping[int, int],
    ledger: ByteLedger,
    timeout: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[int, Message], dict[int, str]]:
    """Send ``content`` to every client and wait, bounded, for the replies.

    A client whose process died over the message, its node being there still, is asked once more.

    Args:
        grid: Flower's grid.
        kind: ``train``, ``evaluate`` or ``handshake``, also in the byte ledger.
        content: what is sent, by client.
        nodes: client id -> node id.
        ledger: counts both directions.
        timeout: seconds.
        progress: called with (replies so far, clients asked).

    Returns:
        ``client -> reply`` in client order, and ``client -> why there is none``.
    """

    def send(clients: Sequence[int]) -> dict[str, int]:
        messages = {client: _message(kind, nodes[client], content(client)) for client in clients}
        sent = dict(zip(grid.push_messages(messages.values()), messages, strict=True))
        for client, message in messages.items():  # with the ids that they have only now
            ledger.add(kind, client, "down", message)
        return sent

    pending = send(sorted(nodes))
    replies: dict[int, Message] = {}
    failed: dict[int, str] = {}
    again: set[int] = set()
    deadline = time.monotonic() + timeout
    while pending and time.monotonic() < deadline:
        arrived = list(grid.pull_messages(list(pending)))
        if time.monotonic() >= deadline:  # a grid in this process computes the reply here
            break
        for reply in arrived:
            # By the question it answers: an error's sender need not be the node that died.
            client = pending.pop(reply.metadata.reply_to_message_id)
            ledger.add(kind, client, "up", reply)
            if not reply.has_error():
                replies[client] = reply
            elif reply.error.code == CLIENT_DIED and client not in again:
                again.add(client)
                pending |= send([client])
            else:
                failed[client] = _reason(reply.error.code, reply.error.reason)
        progress(len(replies) + len(failed), len(nodes))
        if not arrived:
            time.sleep(_POLL)
    failed |= dict.fromkeys(pending.values(), f"no reply within {timeout:g} s")
    return dict(sorted(replies.items())), dict(sorted(failed.items()))


def _message(kind: str, node: int, content: RecordDict) -> Message:
    return Message(content, dst_node_id=node, message_type=_TYPES[kind])


def budget_spent(reason: str) -> bool:
    """Tell from the reason why a client failed whether its privacy budget is spent."""
    return reason.startswith(_reason(BudgetSpent.CODE, ""))


def _reason(code: int, text: str) -> str:
    return f"error {code}: {printable(text)}"


def printable(text: str) -> str:
    """Return a node's words as they may stand in a log or on a terminal: short, one line."""
    return "".join(c if c.isprintable() else "?" for c in text[:_LONGEST])
