"""Sending one message to each of some clients and collecting what comes back in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.privacy.ledger import BudgetSpent
from server.ledger import ByteLedger

_TYPES = {"train": "train", "evaluate": "evaluate", "handshake": "query.handshake"}
_POLL = 0.05  # seconds between looks for replies


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
    clients = sorted(nodes)
    messages = [
        Message(content(client), dst_node_id=nodes[client], message_type=_TYPES[kind])
        for client in clients
    ]
    pending = dict(zip(grid.push_messages(messages), clients, strict=True))
    for client, message in zip(clients, messages, strict=True):
        ledger.add(kind, client, "down", message)
    replies: dict[int, Message] = {}
    failed: dict[int, str] = {}
    deadline = time.monotonic() + timeout
    while pending and time.monotonic() < deadline:
        arrived = list(grid.pull_messages(list(pending)))
        if time.monotonic() >= deadline:  # a grid in this process computes the reply here
            break
        for reply in arrived:
            # By the question it answers: an error's sender need not be the node that died.
            client = pending.pop(reply.metadata.reply_to_message_id)
            ledger.add(kind, client, "up", reply)
            if reply.has_error():
                failed[client] = _reason(reply.error.code, reply.error.reason)
            else:
                replies[client] = reply
        progress(len(replies) + len(failed), len(clients))
        if not arrived:
            time.sleep(_POLL)
    failed |= dict.fromkeys(pending.values(), f"no reply within {timeout:g} s")
    return dict(sorted(replies.items())), dict(sorted(failed.items()))


def budget_spent(reason: str) -> bool:
    """Tell from the reason why a client failed whether its privacy budget is spent."""
    return reason.startswith(_reason(BudgetSpent.CODE, ""))


def _reason(code: int, text: str) -> str:
    return f"error {code}: {text}"
