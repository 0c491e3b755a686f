"""Errors for users, and helpers for their messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_CLOSE = 0.75  # difflib's ratio: one changed letter of four; below, words are only alike


class UserError(Exception):
    """A mistake in the user's input: one line with the value and what is expected.

    The command line prints the line and exits with code 2.
    """


class RunFailed(Exception):
    """A run that cannot continue (too few clients, no nodes): exit code 1; it can be resumed."""


class Interrupted(Exception):
    """A command interrupted by Ctrl-C; the text says how to continue: exit code 130."""


@contextmanager
def telling(how: str) -> Iterator[None]:
    """Say how to continue when the block is interrupted by Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(how) from None


def suggestion(value: str, options: Iterable[str]) -> str:
    """Return ``"; did you mean 'slash'?"``, or "" if no option is close to ``value``.

    In full names such as ``local.lr`` the section, which is right, does not count.
    """
    section = value[: value.rfind(".") + 1]
    spellings = {option.removeprefix(section).lower(): option for option in options}
    name = value.removeprefix(section).lower()
    close = difflib.get_close_matches(name, spellings, n=3, cutoff=_CLOSE)
    if not close:
        return ""
    return "; did you mean " + " or ".join(f"'{spellings[name]}'" for name in close) + "?"


def nearest(value: str, options: Iterable[str]) -> str:
    """Return a clause with the valid options close to ``value``, or with all if none is close."""
    options = sorted(options)
    return suggestion(value, options) or "; valid: " + ", ".join(options)


def plain_message(message: str) -> str:
    """Return pydantic's message without its jargon."""
    message = message.removeprefix("Value error, ").removeprefix("Input should be ")
    return message.partition(", unable to parse")[0]


def printable(text: str, longest: int | None = None) -> str:
    """Return text from outside on one line, safe for logs and terminals, cut to ``longest``."""
    return "".join(c if c.isprintable() else "?" for c in text[:longest])


def is_unicode(text: str) -> bool:
    """Return whether a text can be written: it has no half of a surrogate pair, as JSON allows."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
