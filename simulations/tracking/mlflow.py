"""MLflow: ``RUN/mlruns``, or wherever MLFLOW_TRACKING_URI says (extra ``mlflow``)."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from fedpeft.config import Experiment
from server.runfolder import RESULT
from simulations.tracking.base import Begun, Scalar, numbers_of, settings_of

FOLDER = "mlruns"
_LAST = "seconds"  # of a round's values, the one that is written last
_BATCH = 100  # parameters or tags that MLflow takes at once
_ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",  # MLflow 3 wants to be asked for a folder of files
    # A server that is away holds up the end of a run for seconds, not for the default's minutes.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
}


class MLflow:
    """A run as MLflow's run of the same name, in MLFLOW_EXPERIMENT_NAME or ``fedpeft``."""

    def begin(self, experiment: Experiment, folder: Path, kept: Begun | None) -> Begun:
        """Create the run, or set it running again; see ``Tracker``."""
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        own = (folder / FOLDER).resolve().as_uri()
        self._client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI") or own)
        self._folder = folder
        if kept:
            self._run = kept.run
            self._client.update_run(self._run, status="RUNNING")
            written = self._client.get_metric_history(self._run, _LAST)
            return Begun(self._run, max((each.step for each in written), default=0))
        self._run = self._create(folder.resolve().name)
        self._log_texts("params", settings_of(experiment))
        return Begun(self._run)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Log metrics; see ``Tracker``."""
        self._log_metrics(values, number)

    def end(self, result: Mapping[str, Scalar] | None) -> None:
        """Log numbers of the result as metrics, texts as tags, and its file; see ``Tracker``."""
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
        found = self._client.get_experiment_by_name(title)
        identity = found.experiment_id if found else self._client.create_experiment(title)
        return self._client.create_run(identity, run_name=name).info.run_id

    def _log_metrics(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        names = sorted(values, key=lambda name: name == _LAST)
        metrics = [Metric(name, values[name], now, step) for name in names]
        self._client.log_batch(self._run, metrics=metrics)

    def _log_texts(self, kind: str, values: Mapping[str, Scalar]) -> None:
        from mlflow.entities import Param, RunTag

        made = {"params": Param, "tags": RunTag}[kind]
        texts = [made(key, str(value)) for key, value in values.items()]
        for start in range(0, len(texts), _BATCH):
            self._client.log_batch(self._run, **{kind: texts[start : start + _BATCH]})
