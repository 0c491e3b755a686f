"""Send a message to each client and collect the replies that arrive in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from fedpeft.errors import printable
from fedpeft.privacy.ledger import BudgetSpent
from fedpeft.wire.messages import RECORD, to_fields
from server.byte_ledger import ByteLedger
from server.records import Kind

_TYPES = {"train": "train", "evaluate": "evaluate", "handshake": "query.handshake"}
_POLLS = 0.05, 1.0  # least and most seconds between two polls for replies
_DELAY = 0.02  # of the time waited so far, between these: polls of long rounds may be rare
CLIENT_DIED = 8  # Flower's code for a ClientApp's process that was silent for a minute
_SILENT = "no reply"
LONGEST = 600  # characters kept of a node's text

Content = TypeVar("Content")


def exchange(
    grid: Grid,
    kind: Kind,
    content: Callable[[int], object],
    nodes: Mapping[int, int],
    ledger: ByteLedger,
    timeout: float,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[dict[int, Message], dict[int, str]]:
    """Send ``content`` to every client and wait for the replies.

    If a client's process died but its node is connected, the message is sent a second time.

    Args:
        grid: Flower's grid.
        kind: ``train``, ``evaluate`` or ``handshake``, also in the byte ledger.
        content: returns the fields for a client, see ``fedpeft.wire.messages``.
        nodes: client id -> node id.
        ledger: counts both directions.
        timeout: seconds.
        progress: called with the number of replies and the number of clients.

    Returns:
        Replies and reasons of failures, by client, in client order.
    """
    send = partial(_send, grid, kind, content, nodes, ledger)
    pending = send(sorted(nodes))
    replies: dict[int, Message] = {}
    failed: dict[int, str] = {}
    repeated: set[int] = set()
    begun = time.monotonic()
    deadline = begun + timeout
    while pending and time.monotonic() < deadline:
        arrived = list(grid.pull_messages(list(pending)))
        if time.monotonic() >= deadline:  # a grid in this process computes replies in the pull
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
                pending |= send([client])
            else:
                failed[client] = _reason(reply.error.code, reply.error.reason)
        progress(len(replies) + len(failed), len(nodes))
        if not arrived:
            time.sleep(min(max(_POLLS[0], _DELAY * (time.monotonic() - begun)), _POLLS[1]))
    failed |= dict.fromkeys(pending.values(), f"{_SILENT} within {timeout:g} s")
    return dict(sorted(replies.items())), dict(sorted(failed.items()))


def _send(
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
    return reason.startswith(_reason(BudgetSpent.CODE, ""))


def was_silent(reason: str) -> bool:
    """Return whether a client failed because it did not reply."""
    return reason.startswith(_SILENT)


def _reason(code: int, text: str) -> str:
    return f"error {code}: {printable(text, LONGEST)}"
