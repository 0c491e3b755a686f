"""Host headers of HTTP: which name a client used, and whether it means this machine."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit


def host_name(header: str) -> str:
    """Return the name or address in a Host header, without its port; "" if it is malformed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def is_address(name: str) -> bool:
    """Return whether a name is an IP address."""
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def is_loopback(header: str) -> bool:
    """Return whether a Host header names loopback."""
    name = host_name(header)
    return name == "localhost" or (is_address(name) and ipaddress.ip_address(name).is_loopback)
