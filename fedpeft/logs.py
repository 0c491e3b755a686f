"""The log of a server or a node: one file of JSON lines that all its processes append to.

A line is ``{"time", "level", "source", "run", "message"}``: time in ISO 8601 UTC, level in small
letters, source the process it came from, run Flower's run id as a string, or null.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Whose information is worth a line; of all other libraries only warnings are.
_OWN = ("fedpeft", "clients", "server")
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
# Flower's ``INFO :   text``, and its web server's ``2026-01-31T12:00:00.000Z INFO [name] text``.
_LEVEL = re.compile(rf"\s*(?:({'|'.join(_LEVELS)})\s*:|[-0-9T:.]+Z ({'|'.join(_LEVELS)})\b)\s*")
_PAUSE = 0.1  # seconds between two looks at a log that is followed
# Flower's strategies count what we hand them, one stand-in for all nodes and no failures: as said
# in a log it is false.
_FALSE = ("Sampled %s nodes", "Received %s results")


def start_log(path: Path, source: str, run: str | None = None) -> logging.Logger:
    """Make this process's loggers append JSON lines to ``path`` (made 0600); return our logger.

    A record's ``extra={"source": ..., "run": ...}`` stands before ``source`` and ``run``. What
    was started before in this process ends.

    Raises:
        OSError: ``path`` cannot be written.
    """
    handler = _LineHandler(path, source, run)
    root = logging.getLogger()
    for earlier in [handler for handler in root.handlers if isinstance(handler, _LineHandler)]:
        root.removeHandler(earlier)
        earlier.close()
    root.addHandler(handler)
    for name in _OWN:
        logging.getLogger(name).setLevel(logging.INFO)
    return logging.getLogger("fedpeft")


class _LineHandler(logging.Handler):
    """Appends each record as one line in one write, so that processes do not mix their lines."""

    def __init__(self, path: Path, source: str, run: str | None):
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._source, self._run = source, run

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a full disk must not end the process that logs."""
        message = _message(record)
        if not message.strip() or (record.name == "flwr" and _is_false(str(record.msg))):
            return
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "source": getattr(record, "source", self._source),
            "run": getattr(record, "run", self._run),
            "message": message,
        }
        try:
            os.write(self._file, (json.dumps(line) + "\n").encode())
        except OSError:
            self.handleError(record)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        super().close()


def _is_false(form: str) -> bool:
    return any(words in form for words in _FALSE)


def _message(record: logging.LogRecord) -> str:
    """Return a record's message; of an exception its class and place, as its text may be data."""
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return message
    places = traceback.extract_tb(error.__traceback__)
    where = f" at {places[-1].filename}:{places[-1].lineno}" if places else ""
    return f"{message} ({type(error).__name__}{where})"


def split_level(output: str) -> tuple[int, str]:
    """Split a line such as ``INFO :   started``, coloured or not, into level and message.

    A line without a level is information.
    """
    text = _COLOURS.sub("", output).rstrip()
    found = _LEVEL.match(text)
    if found is None:
        return logging.INFO, text.lstrip()
    return _LEVELS[found[1] or found[2]], text[found.end() :]


def plain(line: Mapping[str, Any]) -> str:
    """Return a line of the log as a person reads it, on one line and without control characters.

    ``2026-01-31T12:00:00.000+00:00 warning superlink [run 17]: message``
    """
    run = f" [run {line['run']}]" if line["run"] else ""
    # What came from outside (an address, a path) must not move the cursor of a terminal.
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(line["message"]))
    return f"{line['time']} {line['level']} {line['source']}{run}: {message}"


def follow(path: Path, stop: threading.Event, as_json: bool, begin: int = 0) -> None:
    """Print the log from byte ``begin`` on, then what is appended, until ``stop`` is set.

    What stands in the file when ``stop`` is set is still printed. A file that became shorter (a
    rotated log) is read from its start; one that is not there yet is waited for.

    Raises:
        OSError: ``path`` cannot be read.
    """
    while not path.exists():
        if stop.wait(_PAUSE):
            return
    with open(path, "rb") as file:
        file.seek(begin)
        rest = b""
        while True:
            ending = stop.is_set()  # before reading, so that nothing written until then is missed
            if path.stat().st_size < file.tell():
                file.seek(0)
                rest = b""
            *lines, rest = (rest + file.read()).split(b"\n")
            for line in lines:
                _print(line, as_json)
            if lines:
                sys.stdout.flush()
            if ending:
                return
            stop.wait(_PAUSE)


def _print(line: bytes, as_json: bool) -> None:
    text = line.decode(errors="replace")
    if not as_json:
        try:
            text = plain(json.loads(text))
        except (ValueError, KeyError, TypeError):
            return  # not ours, or torn by a full disk
    print(text)
