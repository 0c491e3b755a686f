"""Pairs of families and methods for tests that need no full product of the two.

``test_families`` proves the states of every pair against the equations. What else depends on a
pair is tested on the pairs of ``covering``: every method on families whose code differs most, and
every family with methods that change different things. The other pairs are in ``make test-all``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest
from models import SMALL
from small_families import small_config

from fedpeft.backbones.known import shape_of_config
from fedpeft.backbones.shapes import BackboneShape
from fedpeft.errors import UserError
from fedpeft.methods import build_method, settings_for

#: A decoder with fewer key heads than heads, an encoder-decoder, and an encoder with one matrix
#: for queries, keys and values and with windows.
UNLIKE = ("llama", "bart", "modernbert")
#: A state is shifted, a matrix changed, keys and values added, and an adapter inserted.
UNLIKE_METHODS = ("slash", "lora", "prefix", "houlsby")


@cache
def _shape(family: str) -> BackboneShape:
    return shape_of_config(small_config(family))


@cache
def fits(family: str, name: str) -> bool:
    """Return whether the product builds a method on a small backbone of a family."""
    try:
        build_method(settings_for({"name": name, **SMALL[name]}), _shape(family), seed=3)
    except UserError:
        return False
    return True


def fitting(families: Iterable[str], names: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of a family and a method that it does not refuse."""
    names = list(names)
    return [(family, name) for family in families for name in names if fits(family, name)]


def covering(
    pairs: Iterable[tuple[str, str]],
    families: Iterable[str] = UNLIKE,
    names: Iterable[str] = UNLIKE_METHODS,
) -> list[Any]:
    """Return the pairs as parameters; those with neither a family nor a method named are long."""
    families, names = set(families), set(names)
    return [
        pytest.param(
            *pair, marks=() if pair[0] in families or pair[1] in names else pytest.mark.long
        )
        for pair in pairs
    ]
