"""The log of a server or node: one file of JSON lines that all its processes append to.

A line is ``{"time", "level", "source", "run", "message"}``: time in ISO 8601 UTC, level in lower
case, source the name of the process, run Flower's run id as a string, or null.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# Packages whose information is logged; of all other libraries only warnings are.
_VERBOSE = ("fedpeft", "clients", "server", "deployment")
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "WARN": 30, "ERROR": 40, "CRITICAL": 50}
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
# Flower's ``INFO :   text``, and its web server's ``2026-01-31T12:00:00.000Z INFO [name] text``.
_LEVEL = re.compile(rf"\s*(?:({'|'.join(_LEVELS)})\s*:|[-0-9T:.]+Z ({'|'.join(_LEVELS)})\b)\s*")
_PAUSE = 0.1  # seconds between two reads of a log that is followed
# Flower's strategies get one stand-in for all nodes and no failures, so their counts are wrong.
_WRONG = ("Sampled %s nodes", "Received %s results")


def start_log(path: Path, source: str, run: str | None = None) -> logging.Logger:
    """Make this process's loggers append JSON lines to ``path``, a file of mode 0600.

    A record's ``extra={"source": ..., "run": ...}`` overrides ``source`` and ``run``. An earlier
    log of this process is closed.

    Returns:
        The logger "fedpeft".

    Raises:
        OSError: ``path`` cannot be written.
    """
    handler = _LineHandler(path, source, run)
    root = logging.getLogger()
    for earlier in [handler for handler in root.handlers if isinstance(handler, _LineHandler)]:
        root.removeHandler(earlier)
        earlier.close()
    root.addHandler(handler)
    for name in _VERBOSE:
        logging.getLogger(name).setLevel(logging.INFO)
    return logging.getLogger("fedpeft")


@contextmanager
def printed_log(path: Path, source: str, as_json: bool) -> Iterator[logging.Logger]:
    """Start the log, and print the lines that all processes append to it until the block ends."""
    log = start_log(path, source)
    stop = threading.Event()
    begin = path.stat().st_size
    printing = threading.Thread(target=follow, args=(path, stop, as_json, begin), daemon=True)
    printing.start()
    try:
        yield log
    finally:
        stop.set()
        printing.join()


class _LineHandler(logging.Handler):
    """Append each record as one line in one write, so that lines of processes do not mix."""

    def __init__(self, path: Path, source: str, run: str | None):
        super().__init__()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._source, self._run = source, run

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record; a full disk must not end the process that logs."""
        message = _message(record)
        wrong = record.name == "flwr" and any(words in str(record.msg) for words in _WRONG)
        if wrong or not message.strip():
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


def _message(record: logging.LogRecord) -> str:
    """Return a record's message, with the class and place of an exception: its text may be data."""
    message = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if error is None:
        return message
    places = traceback.extract_tb(error.__traceback__)
    where = f" at {places[-1].filename}:{places[-1].lineno}" if places else ""
    return f"{message} ({type(error).__name__}{where})"


def split_level(output: str) -> tuple[int, str]:
    """Split a line such as ``INFO :   started``, with or without colors, into level and message.

    A line without a level counts as information.
    """
    text = _COLORS.sub("", output).rstrip()
    match = _LEVEL.match(text)
    if match is None:
        return logging.INFO, text.lstrip()
    return _LEVELS[match[1] or match[2]], text[match.end() :]


def plain(line: Mapping[str, Any]) -> str:
    """Return a line of the log as plain text, on one line and without control characters.

    ``2026-01-31T12:00:00.000+00:00 warning superlink [run 17]: message``
    """
    run = f" [run {line['run']}]" if line["run"] else ""
    # Text from outside (an address, a path) must not move the cursor of a terminal.
    message = "".join(c if c.isprintable() else repr(c)[1:-1] for c in str(line["message"]))
    return f"{line['time']} {line['level']} {line['source']}{run}: {message}"


def follow(path: Path, stop: threading.Event, as_json: bool, begin: int = 0) -> None:
    """Print the log from byte ``begin``, and all lines appended until ``stop`` is set.

    Lines written before ``stop`` is set are still printed. A file that became shorter (a rotated
    log) is read from its start. Waits for a missing file.

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
            ending = stop.is_set()  # before reading, so that all lines written until then are read
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
            return  # not a line of the log, or cut off by a full disk
    print(text)
