"""``flwr run .``: the apps in Flower's own simulation, started from a checkout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.experiment.config import Experiment
from fedpeft.page.ports import free_port
from fedpeft.runs.folder import RunFolder

CHECKOUT = Path(__file__).parents[2]
PRIVATE = ("privacy.unit=both", "privacy.noise_multiplier=1", "privacy.reproducible=true")


def test_default_run_config_fits_flowers_two_simulated_nodes() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    assert Experiment.load(config["experiment"]).federation.clients == 2
    assert config["out"] == ""


@pytest.fixture
def flwr(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Return a runner of ``flwr`` commands; end the SuperLink that the first one starts."""
    port = str(free_port())
    scripts = Path(sys.executable).parent
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": port,
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "HF_HUB_OFFLINE": "1",
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [str(scripts / "flwr"), *arguments],
            capture_output=True,
            text=True,
            env=environment,
            cwd=CHECKOUT,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    yield run
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            title = path.read_text()
        except OSError:
            continue
        if "flower-superlink" in title and port in title:
            os.kill(int(path.parent.name), signal.SIGTERM)


@pytest.mark.long
def test_flwr_run_ends_in_the_vector_of_the_local_engine(
    quick: Callable[..., Experiment],
    run: Callable[..., tuple[RunFolder, dict[str, Any]]],
    flwr: Callable[..., str],
    final_vector: Callable[[Path], np.ndarray],
    tmp_path: Path,
) -> None:
    pytest.importorskip("ray")
    experiment = quick("federation.clients=2", "engine.cohort=1", *PRIVATE)
    local, _ = run(experiment, "local")
    out = tmp_path / "flower"
    config = tmp_path / "config.toml"
    config.write_text(f"out = '{out}'\nexperiment = '''{experiment.to_toml()}'''\n")
    printed = flwr("run", ".", "--stream", "-c", str(config))
    deadline = time.monotonic() + 180
    while not (out / "result.json").exists():
        assert time.monotonic() < deadline, printed
        time.sleep(0.5)
    assert final_vector(out).tobytes() == final_vector(local.path).tobytes()
    for line, expected in zip(RunFolder(out).rounds(), local.rounds(), strict=True):
        for key in ("round", "clients", "failed", "loss", "score", "metrics", "privacy"):
            assert line[key] == expected[key], key
