"""The ready studies and what the papers say, for the tests of both."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import lru_cache
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
def plan(study: Callable[..., StudyFile]) -> Callable[[str], Plan]:
    """Return a planner of ready studies, which reads them without a network.

    It keeps the latest plans: tests of one study, one after the other, share its plan.
    """

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a plan asked {address}")

    @lru_cache(maxsize=3)
    def make(name: str) -> Plan:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "connect", refuse)
            return Plan(study(name))

    return make


@pytest.fixture(scope="session")
def cells(plan: Callable[[str], Plan]) -> Callable[[str], list[Cell]]:
    """Return a maker of the cells of a study that need no search: with settings of their own."""
    return lru_cache(maxsize=3)(lambda name: plan(name).cells({}))


@pytest.fixture(scope="session")
def reference() -> Callable[[str], dict[str, Any]]:
    """Return a reader of the papers' figures beside the checkout; without them tests skip."""

    def load(name: str) -> dict[str, Any]:
        path = ROOT.parent / "shared" / "reference" / name
        if not path.is_file():
            pytest.skip(f"no {path}")
        return json.loads(path.read_text())

    return load
