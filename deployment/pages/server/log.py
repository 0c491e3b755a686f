"""The end of the server's log as the page shows it: without any text that a client may have chosen.

The log also holds reasons that nodes gave, paths that strangers asked for, and the output of other
programs. Only lines whose whole text is the server's appear in full. Of a known line with a foreign
part, the part is cut off. Of all others, information is left out, and of warnings and errors only
time, level and source are shown.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedpeft.page.hosts import is_address

WITHHELD = "(text only in server.log: it may quote a client)"
REFUSED = "refused "  # the gateway's lines begin with it
_READ = 1 << 18  # bytes of the log's end; most of them are information of other programs
_SUPERVISOR = "server"
#: Lines of the supervisor about its processes, which have the source of the process.
_OF_PROCESSES = (
    r"ready \(pid \d+\)",
    r"(ended by signal \d+ \([A-Za-z0-9 /]+\)|ended with exit code \d+|(not ready within|did not "
    r"answer for) [\d.e+]+ s|cannot be started \([A-Za-z ]+\)); restart \d+ in [\d.e+]+ s",
    r"(did not end by itself|left processes): killed",
)
#: Beginnings of a run's lines, before what may come from a node.
_OF_RUNS = (
    r"round \d+: client \d+ (failed|did not evaluate|revealed nothing)",
    r"round \d+ (leaves the vector as it is|is without a sum)",
    r"run '[A-Za-z0-9._-]+' has failed",
    r"the run uses the backbone of \d+ of \d+ nodes",
    r"no handshake",
)
#: Of a refused request: the address, but not the method and path that its sender chose.
_REQUEST = re.compile(r"(refused )?([0-9A-Fa-f.:]{1,45}) \S.*: ([^:]+)", re.S)
_HANDSHAKE = re.compile(r"(TLS handshake with [0-9A-Fa-f.:]{1,45} failed)", re.S)
_WHOLE = re.compile("|".join(f"(?:{pattern})" for pattern in _OF_PROCESSES))
_BEGINS = re.compile("|".join(f"(?:{pattern})" for pattern in _OF_RUNS))


def log_tail(path: Path, count: int) -> list[dict[str, Any]]:
    """Return the last lines of the log, ``{"time", "level", "source", "run", "text"}`` each.

    Args:
        path: of the log.
        count: number of lines, at most those in its last 256 KiB.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _READ))
            lines = file.read(_READ).decode(errors="replace").split("\n")
    except OSError:
        return []
    shown = []
    for line in lines[size > _READ : -1]:  # the first one may be cut, the last one incomplete
        try:
            entry = json.loads(line)
            about = {name: str(entry[name] or "") for name in ("time", "level", "source", "run")}
            text = shown_text(entry)
            if text != WITHHELD or about["level"] != "info":
                shown.append({**about, "text": text})
        except (ValueError, KeyError, TypeError):
            continue  # not a line of the log, or cut off by a full disk
    return shown[-count:]


def shown_text(line: Mapping[str, Any]) -> str:
    """Return the text of a line of the log without what a client may have chosen."""
    source, text = str(line["source"]), str(line["message"])
    if source == _SUPERVISOR and not line["run"]:
        return text
    if _WHOLE.fullmatch(text):
        return text
    if source == "gateway":
        return _of_gateway(text)
    begin = _BEGINS.match(text) if source == "run" else None
    return f"{begin[0]} ..." if begin else WITHHELD


def _of_gateway(text: str) -> str:
    request = _REQUEST.fullmatch(text)
    if request and is_address(request[2]):
        return f"{request[1] or ''}a request of {request[2]}: {_known(request[3])}"
    if handshake := _HANDSHAKE.match(text):
        return handshake[1]
    return WITHHELD


def _known(reason: str) -> str:
    """Return a reason of the gateway, whose reasons have no unusual characters."""
    return reason if re.fullmatch(r"[A-Za-z0-9 .,;'()/_-]{1,200}", reason) else "..."
