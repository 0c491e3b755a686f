"""Errors that a person can act on, and the words they are written in."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in what the user gave: one line with the value and what would be right.

    The command line prints the line and ends with exit code 2.
    """


class RunFailed(Exception):
    """A run that cannot go on (too few clients, no nodes): exit code 1, resumable."""


class Interrupted(Exception):
    """A command that Ctrl-C ended, with how to go on: exit code 130."""


def suggestion(value: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'slash'?"``, or nothing if no option is close to ``value``."""
    spellings = {option.lower(): option for option in options}
    close = difflib.get_close_matches(value.lower(), spellings, n=3, cutoff=0.6)
    if not close:
        return ""
    return "; did you mean " + " or ".join(f"'{spellings[name]}'" for name in close) + "?"


def nearest(value: str, options: Iterable[str]) -> str:
    """Return a clause with the valid options closest to ``value``, or else all of them."""
    options = sorted(options)
    return suggestion(value, options) or "; valid: " + ", ".join(options)


def plain_message(message: str) -> str:
    """Return what pydantic expected, without the words that only its users know."""
    message = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return message.partition(", unable to parse")[0]
