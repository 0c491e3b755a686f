"""What a SuperNode says, as lines of the node's log: why the server does not let it in."""

from __future__ import annotations

import logging

from fedpeft.logs import split_level

_NOT_LET_IN = "[code: 2004]"  # Flower's, of a key that is not registered or is online already
_HELP = "https://flower.ai/docs"  # pages that do not know how this SuperNode was started


def read_supernode(output: str) -> tuple[int, str] | None:
    """Return level and message of a line of output; None if it is not worth one."""
    if _NOT_LET_IN in output:
        return logging.ERROR, (
            "the server does not let this node in: its key is not registered there (its operator: "
            "fedpeft server add-node), or is online already (after a crash for up to a minute); "
            "trying again"
        )
    level, message = split_level(output)
    return None if _HELP in message else (level, message)
