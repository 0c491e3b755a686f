"""Lines of nginx and the SuperLink, as they were seen, and what the log makes of them."""

from __future__ import annotations

import logging

import pytest

from server.host.outputs import read_nginx, read_superlink

PREFIX = "2026/11/21 15:48:45 "
ASKED = '{"address": "10.0.0.5", "method": "%s", "uri": "%s", "status": %d, "tls": "TLSv1.3"}'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            ASKED % ("POST", "/v1/control/start-run", 403),
            "refused 10.0.0.5 POST /v1/control/start-run: only /v1/fleet/ is open to the outside",
        ),
        (ASKED % ("", "", 400), "refused 10.0.0.5: no proper HTTP request"),
        (
            ASKED % ("POST", "/v1/fleet/push-object", 413),
            "refused 10.0.0.5 POST /v1/fleet/push-object: the message is too large",
        ),
        (
            ASKED % ("POST", "/v1/fleet/push-object", 502),
            "10.0.0.5 POST /v1/fleet/push-object: the SuperLink does not answer",
        ),
        (ASKED % ("POST", "/v1/fleet/x", 418), "refused 10.0.0.5 POST /v1/fleet/x: status 418"),
        ('{"address": "10.', 'refused: {"address": "10.'),
        ('{"address": "10.0.0.5"}', 'refused: {"address": "10.0.0.5"}'),
    ],
)
def test_each_refusal_names_its_cause(line: str, message: str) -> None:
    assert read_nginx(line) == (logging.WARNING, message)


def test_what_the_superlink_forbids_is_not_said_of_the_proxy() -> None:
    found = read_nginx(ASKED % ("POST", "/v1/fleet/push-messages", 403))
    assert found is not None
    assert "the SuperLink forbids it" in found[1]
    closed = read_nginx(ASKED % ("POST", "/v1/fleet/push-messages/x", 403))
    assert closed is not None
    assert closed[1].endswith("only POST /v1/fleet/NAME is open to the outside")


def test_an_address_that_is_asked_for_is_cut() -> None:
    found = read_nginx(ASKED % ("GET", "/" + "x" * 3000, 403))
    assert found is not None
    assert len(found[1]) < 300


def test_tls_that_fails_names_its_cause() -> None:
    text = (
        "[info] 7#7: *3 SSL_do_handshake() failed (SSL: error:0A000418:SSL routines::tlsv1 alert "
        "unknown ca:SSL alert number 48) while SSL handshaking, client: 10.0.0.5, "
        "server: 0.0.0.0:9092"
    )
    found = read_nginx(PREFIX + text)
    assert found is not None
    assert found[0] == logging.WARNING
    assert found[1].startswith("refused 10.0.0.5: TLS failed (tlsv1 alert unknown ca; it does not")
    old = read_nginx(PREFIX + text.replace("tlsv1 alert unknown ca", "unsupported protocol"))
    assert old == (logging.WARNING, "refused 10.0.0.5: TLS failed (unsupported protocol)")


@pytest.mark.parametrize(
    "line",
    [
        "[notice] 7#7: start worker processes",
        "[info] 7#7: *1 client closed keepalive connection",
        "[info] 7#7: *3 peer closed connection in SSL handshake, client: 10.0.0.5, server: x",
        "[error] 7#7: *1 connect() failed (111: Connection refused) while connecting to upstream",
        "[error] 7#7: *9 limiting requests, excess: 3000.2 by zone, client: 10.0.0.5",
    ],
)
def test_what_is_no_news_leaves_no_line(line: str) -> None:
    assert read_nginx(PREFIX + line) is None


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("[emerg] 7#7: bind() failed", (logging.CRITICAL, "bind() failed")),
        ("[error] 7#7: *1 upstream SSL x", (logging.ERROR, "upstream SSL x")),
    ],
)
def test_errors_of_nginx_itself_are_kept(line: str, expected: tuple[int, str]) -> None:
    assert read_nginx(PREFIX + line) == expected
    assert read_nginx("something else") == (logging.INFO, "something else")


ACTIVATE = (
    "\x1b[91mERROR \x1b[0m:     [/v1/fleet/activate-node][ApiError:2004] Attempted to register "
    "SuperNode with public key: b'-----BEGIN PUBLIC KEY-----\\nMHYw\\n', exception: "
)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "No SuperNode found with the given public key.",
            "refused a node: its key is not registered (fedpeft server add-node)",
        ),
        (
            "SuperNode with node ID 7 could not be activated.",
            "refused a node: it is online already, or has crashed less than a minute ago",
        ),
        ("Something new.", "refused a node: Something new."),
    ],
)
def test_a_node_that_is_not_let_in_is_told_without_its_key(reason: str, said: str) -> None:
    assert read_superlink(ACTIVATE + reason) == (logging.WARNING, said)


def test_the_superlinks_own_calls_of_nodes_are_nginxs_to_tell() -> None:
    line = '2026-11-21T15:48:52.294Z INFO [uvicorn.access] 127.0.0.1:0 - "POST %s HTTP/1.1" 401'
    assert read_superlink(line % "/v1/fleet/activate-node") is None
    assert read_superlink(line % "/v1/control/start-run") is not None
    assert read_superlink("\x1b[92mINFO \x1b[0m:      Starting") == (logging.INFO, "Starting")
