"""Sizes as text, in decimal units as in network rates: 1 KB is 1,000 bytes; shares of counts."""

from __future__ import annotations

import re
from decimal import Decimal

_UNITS = {"B": 1, "KB": 1_000, "MB": 1_000_000}
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?) ?(B|KB|MB)", re.IGNORECASE)


def size_in_bytes(text: str) -> int:
    """Return the whole bytes of a size such as "1 KB", "1.5KB" or "1,200 B".

    Raises:
        ValueError: it is not a size.
    """
    match = _SIZE.fullmatch(text.strip().replace(",", ""))
    if match is None:
        raise ValueError("a size such as '500 B', '1 KB' (1,000 bytes) or '2 MB'")
    return int(Decimal(match[1]) * _UNITS[match[2].upper()])


def share_of(share: float, count: int) -> float:
    """Return ``share * count`` in decimals, to be rounded down or up.

    0.29 of 100 is 29. In binary it is a little less, and would be 28 when rounded down.
    """
    return round(share * count, 9)
