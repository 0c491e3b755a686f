"""Backbones for the tests of the core, in float64."""

from __future__ import annotations

import pytest

from fedpeft.backbones.loading import Backbone, load_backbone


@pytest.fixture
def tiny() -> Backbone:
    """The tiny RoBERTa."""
    return load_backbone("tiny", "cpu", "float64")
