"""Whom the gateway refuses before it reads a body."""

from __future__ import annotations

from pathlib import Path

import pytest
from fronts import PUSH, Front
from gateways import make_nodes, register


def changed(headers: dict[str, str], **values: str) -> dict[str, str]:
    return headers | {name.replace("_", "-"): value for name, value in values.items()}


def test_registered_key_without_signature_is_refused_before_the_body(front: Front) -> None:
    headers = front.node.headers()
    del headers["flwr-signature"]
    assert front.ask(PUSH, headers, length=5_000_000) == 401
    assert front.seen == []
    assert "no signature of a node" in front.line_with(f"refused 127.0.0.1 POST {PUSH}")


def test_signature_of_another_key_is_refused_before_the_body(front: Front, tmp_path: Path) -> None:
    (other,) = make_nodes(tmp_path, "other")
    stolen = {"flwr-public-key": front.node.headers()["flwr-public-key"]}
    assert front.ask(PUSH, other.headers() | stolen, length=5_000_000) == 401
    front.line_with("the signature is not of the node's key")


def test_signature_of_another_time_is_refused_before_the_body(front: Front) -> None:
    later = changed(front.node.headers(), flwr_timestamp=front.node.headers()["flwr-timestamp"])
    assert front.ask(PUSH, later, length=5_000_000) == 401
    front.line_with("the signature is not of the node's key")


@pytest.mark.parametrize("age", [306.0, 86400.0, -6.0])
def test_headers_outside_of_their_window_are_refused_before_the_body(
    front: Front, age: float
) -> None:
    assert front.ask(PUSH, front.node.headers(age), length=5_000_000) == 401
    front.line_with("the node's clock is wrong")
    assert front.seen == []


@pytest.mark.parametrize("age", [0.0, 290.0])
def test_headers_within_their_window_are_accepted(front: Front, age: float) -> None:
    assert front.ask(PUSH, front.node.headers(age), b"z") == 200


def test_unregistered_key_with_a_valid_signature_is_refused_before_the_body(
    front: Front, tmp_path: Path
) -> None:
    (stranger,) = make_nodes(tmp_path, "stranger")
    assert front.ask(PUSH, stranger.headers(), length=5_000_000) == 401
    with front.http() as client:
        answer = client.post("/v1/fleet/activate-node", headers=stranger.headers())
    assert answer.status_code == 412  # the SuperNode shows its operator the text
    assert "not registered" in answer.json()["detail"]
    front.line_with("its key is not registered (fedpeft server add-node)")
    assert front.seen == []


@pytest.mark.parametrize(
    "values",
    [
        {"flwr_public_key": "!"},
        {"flwr_public_key": "YWJj"},
        {"flwr_signature": "!"},
        {"flwr_signature": "YWJj"},
        {"flwr_timestamp": "yesterday"},
        {"flwr_timestamp": "2026-11-22T10:00:00"},
        {"flwr_timestamp": "9999-12-31T23:59:59+00:00"},
        {"flwr_signature": "A" * 3000},
    ],
)
def test_damaged_headers_are_refused(front: Front, values: dict[str, str]) -> None:
    assert front.ask(PUSH, changed(front.node.headers(), **values), length=100) == 401
    assert front.seen == []


def test_removed_node_is_refused_at_once_also_on_its_open_connection(front: Front) -> None:
    with front.http() as client:
        assert client.post(PUSH, headers=front.node.headers()).status_code == 200
        register(front.state.path, [])
        try:
            assert client.post(PUSH, headers=front.node.headers()).status_code == 401
        finally:
            register(front.state.path, [front.node])
        assert client.post(PUSH, headers=front.node.headers()).status_code == 200


def test_damaged_registry_refuses_all(front: Front) -> None:
    (front.state.path / "nodes.json").write_text("{")
    try:
        assert front.ask(PUSH, front.node.headers(), length=100) == 503
    finally:
        register(front.state.path, [front.node])
    front.line_with("nodes.json cannot be read")


def test_headers_are_never_logged(front: Front) -> None:
    headers = front.node.headers(306.0)
    assert front.ask(PUSH, headers) == 401
    front.line_with(f"POST {PUSH}")
    logged = " ".join(front.lines)
    for name in ("flwr-public-key", "flwr-timestamp", "flwr-signature"):
        assert name not in logged and headers[name] not in logged
