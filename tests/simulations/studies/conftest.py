"""The ready studies and what the papers say, for the tests of both."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from small_families import small_family, small_tokenizer

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
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with made-up tables in place of the public ones that studies name."""
    folder = tmp_path_factory.mktemp("tables")
    rows = ["text,label,category", *(f"text {n},{n % 77},{n % 77}" for n in range(154))]
    for path in (ROOT / "simulations" / "studies").glob("*.toml"):
        for name in re.findall(
            r'task\.(?:train|dev) = "([^"]+\.csv)"', path.read_text(encoding="utf-8")
        ):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text("\n".join(rows))
    return folder


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small backbone in place of the checkpoint that a study names."""
    folder = tmp_path_factory.mktemp("weights")
    small = small_family("mpnet", hidden_size=384, max_position_embeddings=514).model
    small.save_pretrained(folder / "all-mpnet-base-v2")
    small_tokenizer().save_pretrained(folder / "all-mpnet-base-v2")
    return folder


@pytest.fixture(scope="session")
def plan(study: Callable[..., StudyFile], tables: Path, weights: Path) -> Callable[[str], Plan]:
    """Return a planner of ready studies, which reads them without a network.

    Studies of public tables read made-up ones. It keeps the latest plans: tests of one study, one
    after the other, share its plan.
    """

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"a plan asked {address}")

    @lru_cache(maxsize=3)
    def make(name: str) -> Plan:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(socket.socket, "connect", refuse)
            patch.chdir(weights)
            overrides = (f"task.path={tables}",) if ".csv" in str(study(name)) else ()
            return Plan(study(name), overrides)

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
