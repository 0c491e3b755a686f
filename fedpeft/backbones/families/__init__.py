"""Families of backbones: a map of sites for each architecture of transformers.

To add an architecture, add a ``Family`` to a file of this folder.
"""

from __future__ import annotations

from typing import Any

from fedpeft.backbones.families import bert, decoders, modernbert, relative, seq2seq
from fedpeft.backbones.families.base import CROSS, Family, Site, Stack, in_cross, without_cross

__all__ = ["CROSS", "FAMILIES", "Family", "Site", "Stack", "family_of", "in_cross", "without_cross"]

FAMILIES: dict[str, Family] = {
    **bert.FAMILIES,
    **modernbert.FAMILIES,
    **relative.FAMILIES,
    **decoders.FAMILIES,
    **seq2seq.FAMILIES,
}


def family_of(config: Any) -> str:
    """Return the key in ``FAMILIES`` of a transformers configuration, whether or not it is there.

    It is the type of the model; a T5 with a gated feed-forward network is a family of its own.
    """
    gated = "-gated" if getattr(config, "is_gated_act", False) else ""
    return f"{config.model_type}{gated}"
