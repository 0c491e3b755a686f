"""Tracking during a run: an error of a tool never ends the run."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpeft.cli.app import main
from fedpeft.errors import UserError
from fedpeft.experiment.config import Experiment
from fedpeft.runs.checkpoints import Checkpoint
from fedpeft.runs.folder import RunFolder
from simulations.simulation import complete, prepare
from simulations.tracking import require_trackers, tracked
from simulations.tracking.base import result_values, settings_of

Quick = Callable[..., Experiment]
SIZES = {"payload": 10, "message": 20}


def save(folder: RunFolder, number: int) -> None:
    line: dict[str, Any] = {"round": number, "clients": 3, "failed": [], "loss": 1 / number}
    line |= {"score": None, "eval_loss": None, "metrics": None, "epsilon": None, "seconds": 1.0}
    line["bytes"] = {"up": SIZES, "down": SIZES}
    folder.save_round(line, [], Checkpoint(number, np.zeros(1)))


def wait_for(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not reached():
        assert time.monotonic() < deadline, "not reached within 180 s"
        time.sleep(0.02)


def reported(folder: RunFolder, tool: str) -> dict[str, Any]:
    path = folder.path / "tracking" / f"{tool}.json"
    return json.loads(path.read_text()) if path.exists() else {"round": 0}


def test_nothing_is_tracked_by_default(quick: Quick, tmp_path: Path) -> None:
    assert quick().output.track == ()
    complete(quick(), tmp_path / "run")
    written = {path.name for path in (tmp_path / "run").iterdir()}
    assert not written & {"tracking", "tensorboard", "mlruns", "wandb"}


def test_tracking_does_not_change_the_digest(quick: Quick, tmp_path: Path) -> None:
    plain, also = quick(), quick("output.track=tensorboard,mlflow")
    assert also.output.track == ("tensorboard", "mlflow")
    assert plain.digest == also.digest
    prepare(plain, tmp_path / "run")
    prepare(also, tmp_path / "run", resume=True)
    with pytest.raises(UserError, match=r"output.track.0 = 'tensorbord': unknown"):
        quick("output.track=tensorbord")


class WithoutMLflow(PathFinder):
    """Finds every module on the path but mlflow."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name == "mlflow" else super().find_spec(name, path, target)


def test_a_missing_extra_is_named_before_anything_is_written(
    quick: Quick,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    finders = [WithoutMLflow if each is PathFinder else each for each in sys.meta_path]
    monkeypatch.setattr(sys, "meta_path", finders)
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    (tmp_path / "run.toml").write_text(quick("output.track=tensorboard,mlflow").to_toml())
    with pytest.raises(SystemExit) as ended:
        main(["simulate", str(tmp_path / "run.toml"), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: output.track = 'mlflow' needs MLflow: pip install -e '.[mlflow]' in the checkout"
    )
    assert not (tmp_path / "out").exists()


def test_a_folder_is_not_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tensorboard").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "tensorboard", raising=False)
    with pytest.raises(UserError, match=r"'tensorboard' needs TensorBoard: pip install"):
        require_trackers(["tensorboard"])


def test_a_tool_that_fails_at_once_stops_with_one_line(
    quick: Quick, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = quick("output.track=tensorboard")
    folder, _ = prepare(experiment, tmp_path / "run")
    (folder.path / "tensorboard").write_text("in the way")
    result = complete(experiment, folder.path)
    assert result["rounds"] == 2
    (line,) = [message for message in caplog.messages if "tracking" in message]
    assert line.startswith("tracking with tensorboard stopped, the run continues: ")
    assert "\n" not in line


def test_a_tool_that_fails_later_stops_and_the_others_continue(
    quick: Quick, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    experiment = quick("output.track=mlflow,tensorboard")
    folder = RunFolder.create(tmp_path / "run", experiment)
    (folder.path / "result.json").write_text('{"score": 0.5}')
    with tracked(folder, experiment):
        save(folder, 1)
        wait_for(lambda: reported(folder, "tensorboard")["round"] == 1)
        shutil.rmtree(folder.path / "mlruns")
        save(folder, 2)
        wait_for(lambda: reported(folder, "tensorboard")["round"] == 2)
        save(folder, 3)
    assert [line.split(" stopped")[0] for line in caplog.messages if "tracking" in line] == [
        "tracking with mlflow"
    ]
    assert reported(folder, "mlflow")["round"] == 1
    assert reported(folder, "tensorboard") == {"run": "tensorboard", "round": 3, "ended": True}


def test_tracking_stops_if_the_server_is_unreachable(
    quick: Quick, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedpeft.page.ports import free_port

    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    result = complete(quick("output.track=mlflow"), tmp_path / "run")
    assert result["rounds"] == 2
    assert [line for line in caplog.messages if "tracking with mlflow stopped" in line]
    assert not (tmp_path / "run" / "mlruns").exists()


def test_an_interrupted_run_is_not_reported_as_finished(quick: Quick, tmp_path: Path) -> None:
    experiment = quick("output.track=tensorboard")
    folder = RunFolder.create(tmp_path / "run", experiment)
    with pytest.raises(KeyboardInterrupt), tracked(folder, experiment):
        save(folder, 1)
        raise KeyboardInterrupt
    assert reported(folder, "tensorboard") == {"run": "tensorboard", "round": 1, "ended": False}


def test_settings_and_results_are_flat(quick: Quick) -> None:
    settings = settings_of(quick("federation.personal=head", "federation.evaluation=clients"))
    assert settings["method.d"] == 16
    assert settings["federation.personal"] == "head"
    assert not any(isinstance(value, dict | list | tuple) for value in settings.values())
    assert result_values({"score": 0.5, "bytes": {"up": {"payload": 3}}, "epsilon": None}) == {
        "result.score": 0.5,
        "result.bytes.up.payload": 3,
    }
