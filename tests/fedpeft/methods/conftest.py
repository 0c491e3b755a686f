"""Small random float64 encoders of both families, with both implementations of attention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from models import small_backbone

from fedpeft.backbones.attention import EAGER, SDPA
from fedpeft.backbones.loading import Backbone


@pytest.fixture(params=["roberta", "bert"])
def small(request: pytest.FixtureRequest) -> Backbone:
    """A small encoder of either family."""
    return small_backbone(request.param)


@pytest.fixture(params=[SDPA, EAGER])
def encoder(request: pytest.FixtureRequest, small: Backbone) -> Iterator[Backbone]:
    """A small encoder of either family with either implementation of attention."""
    small.model.set_attn_implementation(request.param)
    yield small
    small.model.set_attn_implementation(SDPA)
