"""The settings of a run as rows of text, each with its default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel

from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import leaves

#: Settings whose defaults depend on others, see ``Experiment.derived``.
_DERIVED = {
    "representation": "the backbone's",
    "local.lr": "the method's",
    "federation.server_lr": "the strategy's",
}


def described(settings: Mapping[str, Any]) -> list[list[str | None]]:
    """Return [key, value, default] of each setting.

    The defaults of a method are None: only its module has them, and it loads torch.
    """
    defaults = _defaults()
    return [[key, text(value), defaults.get(key)] for key, value in leaves(settings)]


def text(value: Any) -> str:
    """Return a value of TOML as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


@cache
def _defaults() -> dict[str, str]:
    return {key: text(value) for key, value in _static()} | _DERIVED


def _static() -> Iterator[tuple[str, Any]]:
    """Yield (full key, default) of each setting that does not depend on the method."""
    for name, field in Experiment.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from leaves({name: field.default.model_dump()})
        elif name != "method":
            yield name, field.default
