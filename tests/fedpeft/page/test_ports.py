"""Free ports and ports in use."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fedpeft.page import ports
from fedpeft.page.ports import LOOPBACK, PORTS, check_free, free_port


def test_a_free_port_is_not_free_while_a_process_listens() -> None:
    port = free_port()
    assert port in PORTS
    with socket.create_server((LOOPBACK, port)):
        with pytest.raises(OSError):
            check_free(LOOPBACK, port)
        assert free_port() != port
    check_free(LOOPBACK, port)


def test_free_port_skips_ports_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        with socket.create_server((LOOPBACK, 0)) as other:
            free = other.getsockname()[1]
        monkeypatch.setattr(ports, "PORTS", [taken] * 9 + [free])
        assert {free_port() for _ in range(5)} == {free}


def test_free_port_skips_reserved_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    first = free_port()
    second = free_port({first})
    monkeypatch.setattr(ports, "PORTS", [first, second])
    assert {free_port({first}) for _ in range(5)} == {second}


def test_ports_are_below_those_of_outgoing_connections() -> None:
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert max(PORTS) < int(first)


def test_an_address_of_another_machine_is_not_free() -> None:
    with pytest.raises(OSError):
        check_free("192.0.2.1", free_port())
    if socket.has_ipv6:
        check_free("::1", free_port())
