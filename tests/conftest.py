"""What all tests share: quick experiments on the tiny backbone, and the shared data."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

# One thread: tests run side by side, and results to the bit depend on the number of threads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

from fedpeft.experiment.config import Experiment

QUICK = [
    "backbone=tiny",
    "task.train_limit=120",
    "task.eval_limit=40",
    "method.d=16",
    "federation.clients=3",
    "federation.rounds=2",
    "local.batch_size=8",
    "engine.threads=1",
    "output.plots=false",
]


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Set the usual umask: commands that run in this process change it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def quick() -> Callable[..., Experiment]:
    """Return a maker of small experiments: ``quick("federation.rounds=3")``."""
    return lambda *overrides: Experiment.load("", [*QUICK, *overrides])


@pytest.fixture(scope="session")
def byzfl() -> Callable[[str], ModuleType]:
    """Return an importer of a part of byzfl without the rest of it, which needs torchvision."""
    found = importlib.util.find_spec("byzfl")
    assert found and found.submodule_search_locations
    package = ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations)
    sys.modules["byzfl"] = package
    return lambda part: importlib.import_module(f"byzfl.{part}")


def shared_data(name: str) -> Path:
    """Return a folder of data beside the checkout; skip the test if it is not there."""
    path = Path(__file__).resolve().parents[1].parent / "shared" / "data" / name
    if not path.is_dir():
        pytest.skip(f"no files at {path}")
    return path


@pytest.fixture(scope="session")
def glue() -> Path:
    """The folder of GLUE files beside the checkout."""
    return shared_data("glue")


@pytest.fixture(scope="session")
def conll2003() -> Path:
    """The folder of CoNLL-2003's files beside the checkout."""
    return shared_data("conll2003")
