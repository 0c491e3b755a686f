"""What all tests share: quick experiments on the tiny backbone, and the shared data."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from groups import read_groups

# One thread: tests run side by side, and results to the bit depend on the number of threads.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
# pytest-xdist sets it; tables are as wide as without a terminal.
os.environ.pop("COLUMNS", None)

from fedpeft.experiment.config import Experiment

TESTS = Path(__file__).resolve().parent
QUICK = [
    "backbone=tiny",
    "task.train_limit=60",
    "task.eval_limit=40",
    "method.d=16",
    "federation.clients=3",
    "federation.rounds=2",
    "local.batch_size=8",
    "engine.threads=1",
    "output.plots=false",
]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector, and leave what is collected out of its later work.

    It would go through all imports and parameters again and again; Flower starts it for each reply.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        importlib.import_module("hypothesis")  # which would warn about generators made later
        gc.enable()
        gc.set_threshold(20_000)  # a tenth of the time, as most objects of a test are short-lived
        gc.freeze()
        atexit.register(gc.unfreeze)  # or libraries report what is left


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse long tests that no group would run."""
    in_groups = set().union(*(group.test_files for group in read_groups().values()))
    long = {item.path.resolve() for item in items if item.get_closest_marker("long")}
    if left := sorted(str(path) for path in long - in_groups):
        raise pytest.UsageError(f"long tests in no group of tests/groups.toml: {', '.join(left)}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Print each failure at once: a run that is stopped never comes to its summary."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal:
        config.pluginmanager.register(Failures(terminal))


class Failures:
    """Prints the id and the error of a failed test when it ends."""

    def __init__(self, terminal: pytest.TerminalReporter):
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failure."""
        if report.failed:
            lines = [line for line in report.longreprtext.splitlines() if line.startswith("E ")]
            self.terminal.write_line(f"\nFAILED {report.nodeid} ({report.when})")
            self.terminal.write_line("\n".join(lines[:5]))


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """Set the usual umask: commands that run in this process change it."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture(scope="session")
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
    path = TESTS.parents[1] / "shared" / "data" / name
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
