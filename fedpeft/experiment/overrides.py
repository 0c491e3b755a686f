"""Change a tree of settings before it is validated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from fedpeft.errors import UserError, is_unicode, printable


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a tree of settings with changes applied key by key.

    A different ``method.name`` first clears the section, which has the old method's settings.
    """
    result = deepcopy(dict(values))
    for path, value in leaves(changes, names_first=True):
        set_key(result, path, value)
    return result


def leaves(
    values: Mapping[str, Any], path: str = "", names_first: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield (full key, value) of each value in a tree of sections."""
    items = sorted(values.items(), key=lambda item: item[0] != "name") if names_first else None
    for key, value in items or values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.", names_first)
        else:
            yield f"{path}{key}", value


def require_unicode(values: Mapping[str, Any]) -> None:
    """Raise UserError if a value of a tree cannot be written as UTF-8, as bytes of a shell may."""
    for key, value in leaves(values):
        texts = value if isinstance(value, list | tuple) else [value]
        if not all(is_unicode(text) for text in texts if isinstance(text, str)):
            raise UserError(f"{printable(key)} = {printable(str(value))}: is not valid Unicode")


def set_key(values: dict[str, Any], path: str, value: Any) -> None:
    """Set one full key of a tree; a different ``method.name`` clears its section, see ``merged``.

    Raises:
        UserError: a parent of the key is a value, not a section.
    """
    *parents, last = path.split(".")
    node = values
    for parent in parents:
        node = node.setdefault(parent, {})
        if not isinstance(node, dict):
            raise UserError(f"{path}: '{parent}' is a value, not a section")
    if last == "name" and parents == ["method"] and node.get("name", value) != value:
        node.clear()
    node[last] = value


def apply_override(values: dict[str, Any], override: str) -> None:
    """Apply ``key=value`` to a tree; a value that is not valid TOML is a string.

    Raises:
        UserError: not of this form, or a parent of the key is a value, not a section.
    """
    key, equals, text = (part.strip() for part in override.partition("="))
    if not equals or not key:
        raise UserError(f"-s {override}: expected key=value, for example -s local.lr=3e-3")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    try:
        set_key(values, key, value)
    except UserError as error:
        raise UserError(f"-s {override}: {str(error).partition(': ')[2]}") from None
