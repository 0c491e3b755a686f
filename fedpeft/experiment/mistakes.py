"""Explain a pydantic error in an experiment as one line."""

from __future__ import annotations

from typing import Any, cast

from pydantic_core import ErrorDetails

from fedpeft.errors import nearest, plain_message, printable
from fedpeft.methods.settings import Section

_SHOWN = 3  # keys of a section


def explain(error: ErrorDetails, root: type[Section]) -> str:
    """Return one line for an error that pydantic reported in the tree of settings ``root``."""
    key = ".".join(str(part) for part in error["loc"])
    value: Any = error["input"]
    if key == "wire.codec":
        return f"wire.codec is now two settings: write wire.up = {value!r}, wire.down = {value!r}"
    if error["type"] == "extra_forbidden":
        return f"unknown key '{key}'{nearest(key, _keys_beside(error['loc'], root))}"
    if error["type"] in ("model_type", "model_attributes_type"):
        keys = ", ".join(_keys_beside((*error["loc"], ""), root)[:_SHOWN])
        return f"{key} = {value!r}: is a section; set a key of it, such as {keys}"
    if error["type"] == "string_type":
        return f"{key} = {printable(str(value))}: expected text; put it in quotes"
    expected = plain_message(error["msg"])
    if error["type"] == "literal_error":
        options = [option.strip("' ") for option in expected.replace(" or ", ", ").split(",")]
        return f"{key} = {value!r}: unknown{nearest(str(value), options)}"
    return f"{key} = {value!r}: expected {expected}"


def _keys_beside(location: tuple[int | str, ...], root: type[Section]) -> list[str]:
    """Return the full names of the valid keys in the section of an unknown key."""
    section = root
    for part in location[:-1]:
        section = cast(type[Section], section.model_fields[str(part)].annotation)
    prefix = "".join(f"{part}." for part in location[:-1])
    return [prefix + key for key in section.model_fields]
