"""Whether the SuperNode asks the server for work, as the tunnel sees it.

Flower's SuperNode may stop working for good while its own API goes on to answer (flwr 1.41: after a
minute in which no request was answered). So its health is what it does. It asks for work, gets a
message or sends a reply all the time, unless the node computes a reply.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from clients.folder import NodeFolder
from fedpeft.locks import is_held, shared

PERIOD = 5.0  # seconds between two notes while a request waits


def note(folder: NodeFolder) -> None:
    """Note that the SuperNode asks now; without fsync, as losing it is fine."""
    temporary = folder.asked.with_suffix(".tmp")
    with suppress(OSError):  # a full disk must not end a request
        temporary.write_text(str(time.monotonic()))
        os.replace(temporary, folder.asked)


@contextmanager
def computing(folder: NodeFolder) -> Iterator[None]:
    """Note that this process computes a reply, until the block or the process ends."""
    with shared(folder.computes):
        yield


def silence(folder: NodeFolder) -> float:
    """Return the seconds since the SuperNode asked; 0 while the node computes a reply."""
    if is_held(folder.computes, by_some=True):
        return 0.0
    try:
        return max(0.0, time.monotonic() - float(folder.asked.read_text()))
    except (OSError, ValueError):  # no node was started here
        return 0.0
