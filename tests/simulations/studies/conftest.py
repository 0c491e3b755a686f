"""The ready studies and what the papers say, for the tests of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from simulations.study.cells import Cell
from simulations.study.file import StudyFile, read
from simulations.study.plan import Plan

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def study() -> Callable[..., StudyFile]:
    """Return a reader of ready studies: ``study("table2")``."""
    folder = ROOT / "simulations" / "studies"
    return lambda name: read(folder / f"{name}.toml")[0]


@pytest.fixture(scope="session")
def cells(study: Callable[..., StudyFile]) -> Callable[[str], list[Cell]]:
    """Return a maker of the cells of a study that need no search: with settings of their own."""
    return lambda name: Plan(study(name)).cells({})


@pytest.fixture(scope="session")
def reference() -> Callable[[str], dict[str, Any]]:
    """Return a reader of the papers' figures beside the checkout; without them tests skip."""

    def load(name: str) -> dict[str, Any]:
        path = ROOT.parent / "shared" / "reference" / name
        if not path.is_file():
            pytest.skip(f"no {path}")
        return json.loads(path.read_text())

    return load
