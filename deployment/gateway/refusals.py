"""The log of refused requests: one line each, without headers and not without limit."""

from __future__ import annotations

import time

from deployment.gateway.limits import Budget, Rate

_LONGEST = 200  # characters of a requested address
_LINES = Budget(200, 2)  # printed
_REPORT = 60.0  # seconds between two lines about lines that were left out


class Refusals:
    """Print a line for each refused request, which the supervisor writes to the server's log.

    A flood of requests cannot fill the disk: at most two lines per second are printed, and 200 at
    once.
    """

    def __init__(self) -> None:
        self._rate: Rate[None] = Rate(_LINES)
        self._left_out, self._reported = 0, 0.0

    def log(self, address: str, method: str, path: str, status: int, reason: str) -> None:
        """Print a refused request; ``method`` and ``path`` are "" if they are unknown."""
        about = " ".join(_printable(text) for text in (address, method, path) if text)
        # The SuperLink did not answer: the request is not refused, the node sends it again.
        self._print(f"{'' if status in (502, 504) else 'refused '}{about}: {reason}")

    def log_handshake(self, address: str, reason: str) -> None:
        """Print a failed TLS handshake."""
        self._print(f"TLS handshake with {address} failed: {_printable(reason)}")

    def warn(self, message: str) -> None:
        """Print another warning that requests may cause."""
        self._print(message)

    def _print(self, line: str) -> None:
        if not self._rate.allows(None):
            self._left_out += 1
            return
        now = time.monotonic()
        if self._left_out and now - self._reported > _REPORT:
            print(f"WARNING: {self._left_out} more refusals were not logged", flush=True)
            self._left_out, self._reported = 0, now
        print(f"WARNING: {line}", flush=True)


def _printable(text: str) -> str:
    """Return a text on one line, cut, and without control characters."""
    text = text[:_LONGEST] + (" ..." if len(text) > _LONGEST else "")
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
