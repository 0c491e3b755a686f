"""Runs of the engines, in this process and as `fedpeft simulate` in others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from browsing import chromium
from safetensors.numpy import load_file

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RunFolder
from simulations.simulation import prepare, simulate

if TYPE_CHECKING:
    from selenium.webdriver import Chrome


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., tuple[RunFolder, dict[str, Any]]]:
    """Return a runner: experiment -> (folder ``tmp_path/name``, result)."""

    def make(experiment: Experiment, name: str = "run") -> tuple[RunFolder, dict[str, Any]]:
        folder, _ = prepare(experiment, tmp_path / name)
        return folder, simulate(folder, experiment)

    return make


@pytest.fixture
def final_vector() -> Callable[[Path], np.ndarray]:
    """Return a reader of the final task vector of a run folder."""
    return lambda path: load_file(path / "vector.safetensors")["vector"]


@pytest.fixture
def start_cli(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Give a starter of `fedpeft simulate` in a process of its own, which prints to OUT.txt."""
    started: list[subprocess.Popen[bytes]] = []

    def start(experiment: Experiment, out: Path, *options: str) -> subprocess.Popen[bytes]:
        file = tmp_path / f"{out.name}.toml"
        file.write_text(experiment.to_toml())
        command = [str(Path(sys.executable).with_name("fedpeft")), "simulate", str(file)]
        with open(out.with_suffix(".txt"), "ab") as printed:
            process = subprocess.Popen(
                [*command, "--out", str(out), *options],
                stdout=printed,
                stderr=printed,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
                # A background job of a shell ignores Ctrl-C, and so would what it starts.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
                cwd=tmp_path,
            )
        started.append(process)
        return process

    yield start
    for process in started:  # none is left where a test failed
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Chrome]:
    """A headless Chromium that logs its console and requests."""
    with chromium() as driver:
        yield driver
