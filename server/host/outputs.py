"""What nginx and the SuperLink say, as lines of our log: refusals with their cause."""

from __future__ import annotations

import json
import logging
import re

from fedpeft.logs import split_level

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}
# 2026/01/31 12:00:00 [info] 7#7: *3 SSL_do_handshake() failed (...) while ..., client: 10.0.0.5
_ERROR = re.compile(r"\S+ \S+ \[(\w+)\] \d+#\d+: (?:\*\d+ )?(.*)")
_CLIENT = re.compile(r", client: ([^,\s]+)")
_TLS_REASON = re.compile(r"SSL routines:[^:]*:([^:)]+)")
_REASONS = {
    400: "no proper HTTP request",
    401: "no signature of a node that the SuperLink knows, or its clock is wrong",
    403: "the SuperLink forbids it, as of a run that is over; its own line says why",
    408: "the request did not come in time",
    412: "the SuperLink does not let this node in; its own line says why",
    413: "the message is too large",
    499: "the node did not wait for the answer",
    502: "the SuperLink does not answer",
    503: "too many requests or connections from this address, or the SuperLink is busy",
    504: "the SuperLink did not answer in time",
}
_NOT_REFUSED = (499, 502, 504)
_LONGEST = 200  # letters of an address that was asked for
#: Alerts of a client that has another authority, or none, for the server's certificate.
_UNTRUSTED = "unknown ca", "bad certificate", "certificate unknown"
# Said by the line of the refusal, too.
_REPEATED = "limiting ", "connect() failed", "plain HTTP request", "upstream timed out"
_FLEET = re.compile("POST /v1/fleet/[a-z-]+")  # what nginx lets through
_FLEET_CALL = re.compile(r"\[uvicorn\.access\] .* /v1/fleet/")
_NOT_ACTIVATED = re.compile(r"\[ApiError:2004\] .*, exception: (.*)")
_WHY_NOT = {
    "No SuperNode found": "its key is not registered (fedpeft server add-node)",
    "could not be activated": "it is online already, or has crashed less than a minute ago",
}


def read_nginx(line: str) -> tuple[int, str] | None:
    """Return level and message of a line of nginx's, None for one that is not worth one."""
    if line.startswith("{"):
        return _refusal(line)
    found = _ERROR.match(line)
    if not found:
        return logging.INFO, line
    level, text = _LEVELS.get(found[1], logging.CRITICAL), found[2]
    client = _CLIENT.search(text)
    if client and "upstream" not in text and ("SSL_" in text or "peer closed" in text):
        return _tls(client[1], text)
    if level <= logging.INFO or any(words in text for words in _REPEATED):
        return None
    return level, text


def read_superlink(line: str) -> tuple[int, str] | None:
    """Return level and message of a line of the SuperLink's, None for one that nginx tells."""
    level, text = split_level(line)
    if _FLEET_CALL.match(text):
        return None
    refused = _NOT_ACTIVATED.search(text)
    if refused:
        why = [words for sign, words in _WHY_NOT.items() if sign in refused[1]]
        return logging.WARNING, "refused a node: " + "; ".join(why or [refused[1]])
    return level, text


def _refusal(line: str) -> tuple[int, str]:
    """Read a line of the format ``refused`` (server/host/proxy.py)."""
    try:
        asked = json.loads(line)
        method, uri, status = str(asked["method"]), str(asked["uri"]), int(asked["status"])
        who, tls = str(asked["address"]), bool(asked["tls"])
    except (ValueError, KeyError, TypeError):
        return logging.WARNING, f"refused: {line[:_LONGEST]}"
    about = " ".join(filter(None, [who, method, uri[:_LONGEST]]))
    if not tls:
        reason = "plain HTTP; this port speaks TLS only"
    elif status == 403 and not _FLEET.fullmatch(f"{method} {uri}"):
        closed = "POST /v1/fleet/NAME" if uri.startswith("/v1/fleet/") else "/v1/fleet/"
        reason = f"only {closed} is open to the outside"
    else:
        reason = _REASONS.get(status, f"status {status}")
    refused = "" if status in _NOT_REFUSED else "refused "
    return logging.WARNING, f"{refused}{about}: {reason}"


def _tls(who: str, text: str) -> tuple[int, str] | None:
    """Read a connection that ended before its first request."""
    reason = _TLS_REASON.search(text)
    if reason is None:
        return None  # ended without a word, as probes of a port do
    why = reason[1].strip()
    if any(words in why for words in _UNTRUSTED):
        why += "; it does not trust the authority of this server's certificate: wrong ca.crt there"
    return logging.WARNING, f"refused {who}: TLS failed ({why})"
