"""The Python API: signatures and docstrings of public objects."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

from parts.markdown import block

_LONG = 100  # columns of a signature on one line


def api(path: str) -> str:
    """Return the documentation of an object, with its public members.

    Args:
        path: full name of a module, a class or a function; ``NAME:one,two`` names the members of a
            class to show.
    """
    name, _, chosen = path.partition(":")
    thing = _found(name)
    if isinstance(thing, ModuleType):
        members = [_entry(key, value) for key, value in _defined(thing)]
        return "\n\n".join([f"### `{name}`", inspect.cleandoc(thing.__doc__ or ""), *members])
    members = chosen.split(",") if chosen else None
    return f"### `{name}`\n\n{_entry(thing.__name__, thing, members)}"


def _found(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(import_module(module), attribute)


def _defined(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes of a module, in the order of its source."""
    for name, value in vars(module).items():
        own = getattr(value, "__module__", "") == module.__name__
        if own and not name.startswith("_") and inspect.unwrap(value).__doc__:
            yield name, value


def _entry(name: str, thing: Any, members: list[str] | None = None) -> str:
    """Return a signature with its docstring as code, for a class with its members."""
    if not inspect.isclass(thing):
        return block(_function(name, thing), "python")
    lines = [f"class {name}:", _docstring(thing)]
    for key, value in vars(thing).items():
        shown = key in members if members else not key.startswith("_")
        inner = getattr(value, "fget", None) or getattr(value, "func", None)
        inner = inner or getattr(value, "__func__", value)
        if shown and inspect.isfunction(inner) and inner.__doc__:
            decorator = "" if inner is value else f"@{_kind(value)}\n"
            lines.append("\n" + textwrap.indent(decorator + _function(key, inner), "    "))
    return block("\n".join(lines), "python")


def _kind(value: Any) -> str:
    return "property" if type(value).__name__ == "cached_property" else type(value).__name__


def _function(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    bare = signature.replace(
        parameters=[
            each.replace(annotation=_plain(each.annotation), default=_quoted(each.default))
            for each in signature.parameters.values()
        ],
        return_annotation=_plain(signature.return_annotation),
    )
    line = f"def {name}{bare}:"
    if len(line) > _LONG:
        parts = [str(each) for each in bare.parameters.values()]
        end = str(bare.replace(parameters=[])).removeprefix("()")
        line = f"def {name}(\n    " + ",\n    ".join(parts) + f",\n){end}:"
    return f"{line}\n{_docstring(function)}"


class _Text:
    """A part of a signature as it stands in the source."""

    def __init__(self, text: str):
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _plain(annotation: Any) -> Any:
    return _Text(annotation) if isinstance(annotation, str) else annotation


def _quoted(default: Any) -> Any:
    """Return a default with the quotes of this project's source."""
    return _Text(json.dumps(default)) if isinstance(default, str) else default


def _docstring(thing: Any) -> str:
    text = inspect.cleandoc(thing.__doc__ or "")
    end = "\n" if "\n" in text else ""
    return textwrap.indent(f'"""{text}{end}"""', "    ", lambda line: bool(line.strip()))


PARTS: dict[str, Callable[..., str]] = {"api": api}
