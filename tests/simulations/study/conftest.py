"""Folders of studies."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from simulations.study.folder import StudyFolder


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., StudyFolder]:
    """Return a maker of study folders: text -> folder ``tmp_path/study``."""
    return lambda text, resume=False: StudyFolder.create(tmp_path / "study", text, resume)
