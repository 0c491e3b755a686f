"""The settings of a run as rows of text, each with its default."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.experiment.overrides import leaves

#: Other defaults depend on these, so a run is compared with the defaults for its own.
_CHOICES = ("backbone", "task.name", "method.name")


def described(settings: Mapping[str, Any]) -> list[list[str]]:
    """Return [key, value, default] of each setting; default is "" where there is none."""
    values = {key: text(value) for key, value in leaves(settings)}
    defaults = _defaults(*(values.get(key, "") for key in _CHOICES))
    return [[key, value, defaults.get(key, "")] for key, value in values.items()]


def text(value: Any) -> str:
    """Return a value of TOML as text."""
    if isinstance(value, list | tuple):
        return ", ".join(map(text, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=256)
def _defaults(backbone: str, task: str, method: str) -> dict[str, str]:
    try:
        experiment = Experiment.of({"method": {"name": method}} if method else {})
        values = tomllib.loads(experiment.to_toml())
    except UserError:  # a method that only another version knows
        return {}
    return {key: text(value) for key, value in leaves(values)}
