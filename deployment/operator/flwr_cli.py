"""Flower's public command line, run for one SuperLink with JSON output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deployment.hosting.shims import direct
from deployment.operator.connection import Connection
from fedpeft.errors import UserError
from fedpeft.files import parse_object

_NAME = "fedpeft"  # the connection's name in the temporary configuration
_PATIENCE = 120.0  # seconds; each command is one short request
_UNAVAILABLE = "Connection to the SuperLink is unavailable"
_UNKNOWN_RUN = re.compile(r"Run ID( \d+)? not found")


class NoSuperLink(UserError):
    """No SuperLink answers at the address."""


class UnknownRun(UserError):
    """The SuperLink answers but has no run with this id."""


def run_flwr(arguments: Sequence[str], connection: Connection) -> dict[str, Any]:
    """Run ``flwr ARGUMENTS`` for a SuperLink and return its JSON answer.

    Example: ``run_flwr(["ls", "--run-id", "7"], connection)``; the name of the connection and
    ``--format json`` are appended.

    Raises:
        NoSuperLink: no program with a certificate of the CA answers at ``connection.control``.
        UnknownRun: the SuperLink has no such run.
        UserError: Flower refused the command; the message holds its reason in one line.
    """
    with tempfile.TemporaryDirectory(prefix="fedpeft-flwr-") as home:  # 0700
        _write_config(Path(home), connection)
        flwr = str(Path(sysconfig.get_path("scripts")) / "flwr")
        try:
            done = subprocess.run(
                [flwr, *arguments, _NAME, "--format", "json"],
                env={
                    **os.environ,
                    **direct(),
                    "FLWR_HOME": home,
                    "FLWR_TELEMETRY_ENABLED": "0",
                    "FLWR_DISABLE_UPDATE_CHECK": "1",
                    "NO_COLOR": "1",
                },
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
            )
        except FileNotFoundError:
            raise UserError(
                f"'{flwr}' does not exist; install flwr into this environment"
            ) from None
        except subprocess.TimeoutExpired:
            raise NoSuperLink(
                f"the SuperLink at {connection.control} did not answer 'flwr {arguments[0]}' for "
                f"{_PATIENCE:.0f} s; it may still execute the command"
            ) from None
    return _answer(done, connection)


def _write_config(home: Path, connection: Connection) -> None:
    lines = (
        f"[superlink.{_NAME}]",
        f"address = {json.dumps(connection.control)}",  # a JSON string is a TOML string
        f"root-certificates = {json.dumps(str(connection.ca.resolve()), ensure_ascii=False)}",
    )
    (home / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _answer(done: subprocess.CompletedProcess[str], connection: Connection) -> dict[str, Any]:
    """Return the JSON object of a finished command; Flower exits 0 for some of its errors."""
    answer = _json_object(done.stdout)
    if answer.get("success"):
        return answer
    reason = str(answer.get("error-message") or done.stderr or done.stdout)
    if _UNAVAILABLE in reason:
        raise NoSuperLink(
            f"no SuperLink with a certificate of '{connection.ca}' answers at "
            f"{connection.control}; {connection.advice}"
        )
    line = _one_line(reason)
    kind = UnknownRun if _UNKNOWN_RUN.search(line) else UserError
    raise kind(f"Flower refused '{_command(done)}': {line}")


def _json_object(text: str) -> dict[str, Any]:
    """Return the JSON object at the end of an output, or {}; other text may precede it."""
    start = re.search(r"^\{", text, re.MULTILINE)
    return parse_object(text[start.start() :]) if start else {}


def _command(done: subprocess.CompletedProcess[str]) -> str:
    """Return the words of the command without its arguments: ``flwr supernode register``."""
    words = [str(word) for word in done.args[1:3] if re.fullmatch("[a-z]+", str(word))]
    return " ".join(["flwr", *words])


def _one_line(reason: str) -> str:
    """Return Flower's reason without boxes, colors and advertising, at most 300 characters."""
    # In JSON, the printed output precedes an empty line and the reason follows it.
    reason = reason.partition("\n\n")[2] or reason
    plain = re.sub(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]", "", reason)
    plain = plain.partition("For more information, visit")[0]
    return " ".join(plain.split())[:300] or "it gave no reason"
