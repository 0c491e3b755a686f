"""MLflow: ``RUN/mlruns``, or the address in MLFLOW_TRACKING_URI (extra ``mlflow``)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from fedpeft.experiment.config import Experiment
from fedpeft.runs.folder import RESULT
from simulations.tracking.base import Begun, Scalar, numbers_of, settings_of

FOLDER = "mlruns"
_LAST = "seconds"  # the value of a round that is written last
_BATCH = 100  # parameters or tags per request of MLflow
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # required by MLflow 3 for a folder of files
    # An unreachable server delays the end of a run by seconds; by minutes with the defaults.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}


class MLflow:
    """An MLflow run of the same name, in MLFLOW_EXPERIMENT_NAME or ``fedpeft``."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Create the run, or reopen it; see ``Tracker``."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        local = (folder / FOLDER).resolve().as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or local)
        self._folder = folder
        if kept:
            self._run = kept.run
            self._client.update_run(self._run, status="RUNNING")
            written = self._client.get_metric_history(self._run, _LAST)
            return Begun(self._run, max((metric.step for metric in written), default=0))
        self._run = self._create(folder.resolve().name)
        self._log_texts("params", settings_of(experiment))
        return Begun(self._run)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Log metrics; see ``Tracker``."""
        self._log_metrics(values, number)

    def end(self, result: Mapping[str, Scalar] | None) -> None:
        """Log the result: numbers as metrics, texts as tags, and the file; see ``Tracker``."""
        if result is not None:
            numbers = numbers_of(result)
            self._log_metrics(numbers, 0)
            texts = {key: value for key, value in result.items() if key not in numbers}
            self._log_texts("tags", texts)
            self._client.log_artifact(self._run, str(self._folder / RESULT))
        self._client.set_terminated(self._run, "KILLED" if result is None else "FINISHED")

    def _create(self, name: str) -> str:
        """Create a run and return its id."""
        title = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedpeft"
        existing = self._client.get_experiment_by_name(title)
        identity = existing.experiment_id if existing else self._client.create_experiment(title)
        return self._client.create_run(identity, run_name=name).info.run_id

    def _log_metrics(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        names = sorted(values, key=lambda name: name == _LAST)
        metrics = [Metric(name, values[name], now, step) for name in names]
        self._client.log_batch(self._run, metrics=metrics)

    def _log_texts(self, kind: str, values: Mapping[str, Scalar]) -> None:
        from mlflow.entities import Param, RunTag

        entity = {"params": Param, "tags": RunTag}[kind]
        texts = [entity(key, str(value)) for key, value in values.items()]
        for start in range(0, len(texts), _BATCH):
            self._client.log_batch(self._run, **{kind: texts[start : start + _BATCH]})
