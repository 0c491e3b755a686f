"""The fixtures of the tests of sums under masks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from sums import Federation

from fedpeft.experiment.config import Experiment


@pytest.fixture
def ten(quick: Callable[..., Experiment], tmp_path: Path) -> Federation:
    """Ten clients, one of which may collude: eight have to stay."""
    return Federation(quick("federation.secure=true", "federation.clients=10"), tmp_path)
