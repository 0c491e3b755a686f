"""The command line, called as a person calls it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpeft.cli import main


@pytest.fixture
def fedpeft(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Return a function that runs a command and returns (exit code, stdout, stderr)."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
