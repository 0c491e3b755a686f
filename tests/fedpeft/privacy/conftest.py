"""Places for ledgers."""

from __future__ import annotations

from pathlib import Path

import pytest
from ledgers import filled


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger's path, in a folder that is not there yet."""
    return tmp_path / "new" / "3.db"


@pytest.fixture
def full(path: Path) -> Path:
    """A ledger with four charges."""
    return filled(path)
