"""Backbones for the tests of the core, in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fedpeft.backbones.loading import Backbone, cached_backbone, load_backbone
from fedpeft.runtime import forget_runtimes


@pytest.fixture
def tiny() -> Backbone:
    """The tiny RoBERTa."""
    return load_backbone("tiny", "cpu", "float64")


@pytest.fixture(autouse=True, scope="module")
def released() -> Iterator[None]:
    """Release the backbones and runtimes of a file: MiniLM in two formats takes 200 MB."""
    yield
    forget_runtimes()
    cached_backbone.cache_clear()
