"""Changes to a tree of settings before it is checked: single keys, and choices of several keys."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from fedpeft.errors import UserError


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tree of settings with changes laid over it, key by key.

    Another ``method.name`` clears the method's section first: the settings in it were those of
    another method.
    """
    result = deepcopy(dict(values))
    for path, value in leaves(changes, names_first=True):
        set_key(result, path, value)
    return result


def leaves(
    values: Mapping[str, Any], path: str = "", names_first: bool = False
) -> Iterator[tuple[str, Any]]:
    """Yield (full key, value) of everything in a tree that is no section."""
    items = sorted(values.items(), key=lambda item: item[0] != "name") if names_first else None
    for key, value in items or values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.", names_first)
        else:
            yield f"{path}{key}", value


def set_key(values: dict[str, Any], path: str, value: Any) -> None:
    """Set one key of a tree by its full name, see ``merged``.

    Raises:
        UserError: a part of the name is a value, not a section.
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
    """Set one ``key=value`` in a tree; what is not a TOML value is taken as text.

    Raises:
        UserError: not of this form, or a part of the key is a value.
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
