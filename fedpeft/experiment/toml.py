"""Read experiment files; imports little, as a process of a node starts for each message."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from fedpeft.errors import UserError, printable
from fedpeft.files import USERS_TEXT

_LONGEST = 200  # characters of a reason
#: Limits of a text; the parser's time grows with the square of the parts of a dotted key.
MAX_TEXT, MAX_PARTS = 500_000, 8
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
#: Also matches such parts inside of a string, which no setting needs. The quantifiers never go
#: back, and no match begins inside of a word or at an escaped quote, so the time is linear.
_LONG_KEY = re.compile(rf"(?<![A-Za-z0-9_\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_PARTS}}}")


def loads(text: str) -> dict[str, Any]:
    """Return the values of TOML of any origin; takes a second at most.

    Raises:
        ValueError: the text is not valid TOML, is too long, or its keys, values or
            integers are beyond the limits.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"{len(text):,} characters, expected at most {MAX_TEXT:,}")
    if _LONG_KEY.search(text):
        raise ValueError(f"a key of more than {MAX_PARTS} parts")
    try:
        parsed = tomllib.loads(text)
    except RecursionError:
        raise ValueError("values are nested too deeply") from None
    rest: list[Any] = [parsed]
    while rest:
        value = rest.pop()
        if isinstance(value, dict | list):
            rest += value.values() if isinstance(value, dict) else value
        elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError("an integer beyond 64 bits")  # TOML allows no more
    return parsed


def read_text(path: Path) -> str:
    """Return the text of an experiment file.

    Raises:
        UserError: the file is missing, is not a regular file, or is not UTF-8.
    """
    if path.exists() and not path.is_file():
        raise UserError(f"'{path}' is a folder or a device; expected an experiment file")
    if not path.exists():
        raise UserError(f"no experiment file '{path}'; `fedpeft config > {path}` writes one")
    try:
        return path.read_text(encoding=USERS_TEXT)
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; is it an experiment file?") from None


def parse(text: str) -> dict[str, Any]:
    """Return the values of an experiment file, unchecked.

    Raises:
        UserError: the text is not valid TOML.
    """
    try:
        return loads(text)
    except ValueError as error:  # may quote a key
        reason = printable(str(error), _LONGEST)
        raise UserError(f"the experiment file is not valid TOML: {reason}") from None
