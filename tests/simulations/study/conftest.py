"""Folders of studies."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small_studies import GRID, Watched, here

from simulations.study.execution import run_study
from simulations.study.folder import StudyFolder


@pytest.fixture(scope="session")
def grid(tmp_path_factory: pytest.TempPathFactory) -> StudyFolder:
    """The finished study of ``GRID``; read-only."""
    folder = StudyFolder.create(tmp_path_factory.mktemp("grid") / "study", GRID, False)
    run_study(folder, folder.plan(), here, Watched())
    return folder


@pytest.fixture
def finished(grid: StudyFolder, tmp_path: Path) -> StudyFolder:
    """A copy of the finished study, in ``tmp_path/study``."""
    return StudyFolder.open(Path(shutil.copytree(grid.path, tmp_path / "study")))


@pytest.fixture
def folder_of(tmp_path: Path) -> Callable[..., StudyFolder]:
    """Return a maker of study folders: text -> folder ``tmp_path/study``."""
    return lambda text, resume=False: StudyFolder.create(tmp_path / "study", text, resume)
