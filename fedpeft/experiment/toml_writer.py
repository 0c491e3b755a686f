"""Write a tree of settings as an experiment file, with comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedpeft.methods.settings import Section


def write(settings: Section, comments: bool, defaults: Mapping[str, Any]) -> str:
    """Return a tree of settings as TOML: its values first, then its sections.

    Args:
        settings: the tree.
        comments: append each key's description as a comment.
        defaults: values by full key ("local.lr") of settings that are written as comments.
    """
    top, sections = [], []
    for name in type(settings).model_fields:
        value = getattr(settings, name)
        if isinstance(value, Section):
            lines = [
                _line(value, key, comments, defaults.get(f"{name}.{key}"))
                for key in type(value).model_fields
            ]
            sections.append("\n".join([f"[{name}]", *filter(None, lines)]))
        else:
            top.append(_line(settings, name, comments, defaults.get(name)))
    return "\n\n".join(["\n".join(filter(None, top)), *sections]) + "\n"


def _line(section: Section, key: str, comments: bool, default: Any) -> str:
    """Return ``key = value  # description``; "" for None, which TOML cannot express."""
    value = getattr(section, key)
    description = type(section).model_fields[key].description
    if value is None:  # with comments, so that a reader learns of the key
        return f"{f'# {key} =':<36}# {description}" if comments and description else ""
    # JSON strings, numbers and booleans are valid TOML, except for an unescaped DEL.
    line = f"{key} = {json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")
    if default is not None and value == default:
        line = f"# {line}"
    return f"{line:<36}# {description}" if comments and description else line
