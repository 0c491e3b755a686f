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


def nearest(value: str, options: Iterable[str]) -> str:
    """Return a clause that names the valid options closest to ``value``.

    ``"; did you mean 'slash'?"`` when something is close, else all the options.
    """
    options = sorted(options)
    close = difflib.get_close_matches(value, options, n=3, cutoff=0.6)
    if close:
        return "; did you mean " + " or ".join(f"'{name}'" for name in close) + "?"
    return "; valid: " + ", ".join(options)
